"""What fits into memory, from short measured trials: whether a stage does, and the largest batch and picture that do."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from holdfast.act.trial import DEFAULT_BATCH, DEFAULT_SIZE, Measured, measure
from holdfast.judge.amounts import size as amount
from holdfast.observe.machine import this_machine

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from holdfast.words.plan import Plan

ROOM = 0.10
"""What a long training may hold above the peak of a short trial."""
SIZES = (320, 384, 416, 448, 512, 640, 768, 960, 1280)
BATCHES = (1, 2, 4, 8, 16, 32, 64, 128)


@dataclass(frozen=True)
class Answer:
    """What fits."""

    limit: int
    measured: tuple[Measured, ...]
    base: float
    """Bytes that it holds however small a batch is."""
    each: float
    """Bytes for one pixel of a batch."""

    def peak(self, batch: int, size: int) -> float:
        return self.base + self.each * batch * size * size

    def fits(self, batch: int, size: int) -> bool:
        return self.peak(batch, size) * (1 + ROOM) <= self.limit

    def largest_batch(self, size: int) -> int | None:
        return max((batch for batch in BATCHES if self.fits(batch, size)), default=None)

    def largest_size(self, batch: int) -> int | None:
        return max((size for size in SIZES if self.fits(batch, size)), default=None)


def fits(plan: Plan) -> tuple[bool, str]:
    """Whether this stage fits, as measured, and the figures."""
    if plan.trainer != "ultralytics":
        return True, "not measured: only trainings of Ultralytics can be tried out"
    limit = limit_of(plan)
    found = measure(plan)
    if found.failed:
        return False, f"a short trial at {found.size} px, batch {found.batch}, did not run: {found.failed}"
    need = found.peak * (1 + ROOM)
    figures = (
        f"a short trial at {found.size} px, batch {found.batch}, held {amount(found.peak)} at most;"
        f" with {ROOM:.0%} of room that is {amount(need)} of {amount(limit)}"
    )
    return need <= limit, figures


def limit_of(plan: Plan) -> int:
    """Bytes: the plan's own budget, or what the machine has free now."""
    memory = this_machine().memory()
    return plan.budget.memory or memory.available


def what_fits(
    plan: Plan, tell: Callable[[str], None] = lambda _: None, trial: Callable[..., Measured] = measure
) -> Answer | str:
    """From two or three trials; a sentence where there is no answer."""
    settings = plan.settings
    batch, size = int(settings.get("batch", DEFAULT_BATCH)), int(settings.get("imgsz", DEFAULT_SIZE))
    found: list[Measured] = []
    for tried_batch, tried_size in _points(batch, size):
        tell(f"trying batch {tried_batch} at {tried_size} px")
        one = trial(plan, batch=tried_batch, imgsz=tried_size)
        if one.failed and not found:
            return f"A short trial at {tried_size} px, batch {tried_batch}, did not run: {one.failed}"
        if not one.failed:
            found.append(one)
    base, each = line_through(found)
    return Answer(limit=limit_of(plan), measured=tuple(found), base=base, each=each)


def _points(batch: int, size: int) -> Iterator[tuple[int, int]]:
    """The smallest first: it may be all that fits."""
    yield max(1, batch // 4), size
    yield batch, size
    yield batch, max(64, int(size * 0.6) // 32 * 32)


def line_through(found: list[Measured]) -> tuple[float, float]:
    """Peak = base + each * pixels of a batch, by least squares; never falling."""
    n = len(found)
    if n == 1:
        return float(found[0].peak), 0.0
    mean_x, mean_y = sum(one.load for one in found) / n, sum(one.peak for one in found) / n
    spread = sum((one.load - mean_x) ** 2 for one in found)
    slope = sum((one.load - mean_x) * (one.peak - mean_y) for one in found) / spread if spread else 0.0
    slope = max(slope, 0.0)
    # Trials are noisy: what was measured must not be promised away.
    base = max(one.peak - slope * one.load for one in found)
    return base, slope

"""What fits into memory, from short measured trials: whether a stage does, and the largest batch and image that do."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from holdfast.diagnosis.units import size as amount
from holdfast.machine import this_machine
from holdfast.preflight.cost_estimate import GROWS
from holdfast.preflight.short_run import Measurement, make_request, measure

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from holdfast.schema.plan import Plan

    Trial = Callable[..., Measurement]

ROOM = GROWS
"""What a long training may hold above the peak of a short trial."""
SIZES = (160, 224, 256, 320, 384, 416, 448, 512, 640, 768, 960, 1280)
BATCHES = (1, 2, 4, 8, 16, 32, 64, 128)
SMALLER = 0.6
"""The side of the images of the smaller trial."""
MIN_SIDE = 64
VERIFIED = 2
"""Trials of what is recommended at most; where the first does not hold, the next smaller batch is tried."""


@dataclass(frozen=True)
class Answer:
    """What fits."""

    limit: int
    measured: tuple[Measurement, ...]
    base: float
    """Bytes that it holds however small a batch is."""
    each: float
    """Bytes for one pixel of a batch."""
    of: str = "memory"
    """Whose: the machine's, or that of a device with its own."""
    too_large: tuple[tuple[int, int, str], ...] = ()
    """Batches and sizes whose trial did not run, and why."""
    without_mosaic: Measurement | None = None
    recommended: Measurement | None = None
    """What fits and is nearest to the plan, tried for real."""

    def peak(self, batch: int, size: int) -> float:
        return self.base + self.each * batch * size * size

    def fits(self, batch: int, size: int) -> bool:
        if any(batch * size * size >= b * s * s for b, s, _ in self.too_large):
            return False
        return self.peak(batch, size) * (1 + ROOM) <= self.limit

    def largest_batch(self, size: int) -> int | None:
        return max((batch for batch in BATCHES if self.fits(batch, size)), default=None)

    def largest_size(self, batch: int) -> int | None:
        return max((size for size in SIZES if self.fits(batch, size)), default=None)


def fits(plan: Plan, trial: Trial = measure) -> tuple[bool, str]:
    """Whether this stage fits, as measured, and the figures."""
    if plan.trainer != "ultralytics":
        return True, "not measured: only trainings of Ultralytics can be tried out"
    found = trial(plan)
    if found.failed:
        # Only memory is a reason to leave a stage out: its own start will tell of anything else.
        return True, f"not measured: a short trial at {found.size} px, batch {found.batch}, did not run: {found.failed}"
    limit, of = find_limit(plan, found)
    need = held(found) * (1 + ROOM)
    figures = (
        f"a short trial at {found.size} px, batch {found.batch}, held {amount(held(found))} of {of} at most;"
        f" with {ROOM:.0%} of room that is {amount(need)} of {amount(limit)}"
    )
    return need <= limit, figures


def held(found: Measurement) -> int:
    """Where a device has memory of its own, that is what runs out."""
    return found.device[1] if found.device is not None and found.device[2] else found.peak


def find_limit(plan: Plan, found: Measurement) -> tuple[int, str]:
    """Bytes, and whose they are."""
    if found.device is not None and found.device[2]:
        return found.device[2], f"the memory of {found.device[0]}"
    return get_memory_limit(plan), "memory"


def get_memory_limit(plan: Plan) -> int:
    """Bytes: the plan's own budget, or what the machine has free now."""
    memory = this_machine().memory()
    return min(plan.budget.memory or memory.available, memory.limit)


def find_what_fits(
    plan: Plan,
    notify: Callable[[str], None] = lambda _: None,
    trial: Trial = measure,
    *,
    known: Sequence[Measurement] = (),
    verify: bool = True,
) -> Answer | str:
    """From a few trials, and from those that are known; a sentence where there is no answer."""
    asked = make_request({**plan.settings, **plan.overrides})
    found = [one for one in known if not one.failed]
    too_large = [(one.batch, one.size, one.failed) for one in known if one.failed]
    for batch, size in _points(asked.batch, asked.size):
        if any((one.batch, one.size) == (batch, size) for one in (*found, *known)):
            continue
        notify(f"trying batch {batch} at {size} px")
        one = trial(plan, batch=batch, imgsz=size)
        if not one.failed:
            found.append(one)
        elif not found:
            return f"A short trial at {size} px, batch {batch}, did not run: {one.failed}"
        else:
            too_large.append((batch, size, one.failed))
    limit, of = find_limit(plan, found[0])
    base, each = fit_line(found)
    answer = Answer(limit, tuple(found), base, each, of, tuple(too_large))
    if not verify:
        return answer
    return _without_mosaic(plan, _verified(plan, answer, notify, trial), notify, trial)


def _points(batch: int, size: int) -> Iterator[tuple[int, int]]:
    """The smallest first: it may be all that fits."""
    smaller = max(MIN_SIDE, int(size * SMALLER) // 32 * 32)
    yield from dict.fromkeys([(max(1, batch // 4), smaller), (max(1, batch // 4), size), (batch, size)])


def _verified(plan: Plan, answer: Answer, notify: Callable[[str], None], trial: Trial) -> Answer:
    """What is recommended, as tried: the plan's own batch and size where they fit, else the nearest."""
    for _ in range(VERIFIED):
        pair = nearest(plan, answer)
        if pair is None:
            return answer
        batch, size = pair
        known = next((one for one in answer.measured if (one.batch, one.size) == pair), None)
        if known is None:
            notify(f"trying what seems to fit: batch {batch} at {size} px")
            known = trial(plan, batch=batch, imgsz=size)
        if not known.failed and held(known) * (1 + ROOM) <= answer.limit:
            return _with(answer, known, recommended=known)
        answer = _with(answer, known)
    return answer


def _with(answer: Answer, one: Measurement, recommended: Measurement | None = None) -> Answer:
    """The same, with one more trial."""
    measured = answer.measured if one in answer.measured or one.failed else (*answer.measured, one)
    base, each = fit_line(list(measured))
    does_not = held(one) * (1 + ROOM) > answer.limit
    why = one.failed or (f"it held {amount(held(one))}" if does_not else "")
    too_large = (*answer.too_large, (one.batch, one.size, why)) if why else answer.too_large
    return replace(answer, measured=measured, base=base, each=each, too_large=too_large, recommended=recommended)


def nearest(plan: Plan, answer: Answer) -> tuple[int, int] | None:
    """The plan's own pair where it fits; else its size with a smaller batch (which changes no result, as Ultralytics accumulates to
    nbs images); else smaller images.
    """
    asked = make_request({**plan.settings, **plan.overrides})
    if answer.fits(asked.batch, asked.size):
        return asked.batch, asked.size
    smaller = [batch for batch in BATCHES if batch < asked.batch and answer.fits(batch, asked.size)]
    if smaller:
        return max(smaller), asked.size
    sizes = [size for size in SIZES if size < asked.size and answer.fits(1, size)]
    return (1, max(sizes)) if sizes else None


def _without_mosaic(plan: Plan, answer: Answer, notify: Callable[[str], None], trial: Trial) -> Answer:
    """What mosaic costs: the smallest pair is tried without it."""
    one = min(answer.measured, key=lambda measured: measured.load)
    if not {**plan.settings, **plan.overrides}.get("mosaic", 1.0):
        return answer
    notify(f"trying batch {one.batch} at {one.size} px without mosaic")
    without = trial(plan, batch=one.batch, imgsz=one.size, mosaic=0.0)
    if without.failed:
        return answer
    return replace(answer, without_mosaic=without)


def fit_line(found: list[Measurement]) -> tuple[float, float]:
    """Peak = base + each * pixels of a batch, by least squares; never falling."""
    n = len(found)
    if n == 1:
        return float(held(found[0])), 0.0
    mean_x, mean_y = sum(one.load for one in found) / n, sum(held(one) for one in found) / n
    spread = sum((one.load - mean_x) ** 2 for one in found)
    slope = sum((one.load - mean_x) * (held(one) - mean_y) for one in found) / spread if spread else 0.0
    slope = max(slope, 0.0)
    # Trials are noisy: what was measured must not be promised away.
    base = max(held(one) - slope * one.load for one in found)
    return base, slope

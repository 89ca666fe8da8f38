"""Finds out what fits into memory with short runs: whether a stage fits, and the largest batch and image size that fit."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from holdfast.frameworks.ultralytics.cost_estimate import MAX_GROWTH
from holdfast.frameworks.ultralytics.short_run import Measurement, make_request, measure
from holdfast.machine import this_machine
from holdfast.schema.units import size as amount

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from holdfast.schema.plan import Plan

    Trial = Callable[..., Measurement]

ROOM = MAX_GROWTH
"""How much more memory than the peak of a short run a long training may use, as a share."""
SIZES = (160, 224, 256, 320, 384, 416, 448, 512, 640, 768, 960, 1280)
BATCHES = (1, 2, 4, 8, 16, 32, 64, 128)
SMALLER_SHARE = 0.6
"""The image size of the smaller short run, as a share."""
MIN_SIDE = 64
MAX_VERIFIED = 2
"""The maximum number of short runs to verify a recommendation. If the first one does not fit, the next smaller batch is tried."""


@dataclass(frozen=True)
class Answer:
    """What fits."""

    limit: int
    measured: tuple[Measurement, ...]
    base: float
    """Bytes needed regardless of the batch."""
    bytes_per_pixel: float
    """Bytes for one pixel of a batch."""
    memory_kind: str = "memory"
    """Main memory, or the memory of a device."""
    too_large: tuple[tuple[int, int, str], ...] = ()
    """Batches and sizes whose short run failed, and why."""
    without_mosaic: Measurement | None = None
    recommended: Measurement | None = None
    """The setting that fits and is closest to the plan, verified by a short run."""

    def peak(self, batch: int, size: int) -> float:
        return self.base + self.bytes_per_pixel * batch * size * size

    def fits(self, batch: int, size: int) -> bool:
        if any(batch * size * size >= b * s * s for b, s, _ in self.too_large):
            return False
        return self.peak(batch, size) * (1 + ROOM) <= self.limit

    def largest_batch(self, size: int) -> int | None:
        return max((batch for batch in BATCHES if self.fits(batch, size)), default=None)

    def largest_size(self, batch: int) -> int | None:
        return max((size for size in SIZES if self.fits(batch, size)), default=None)


def fits(plan: Plan, trial: Trial = measure) -> tuple[bool, str]:
    """Return whether this stage fits, measured by a short run, and a message with the figures."""
    found = trial(plan)
    if found.failed:
        # Only memory is a reason to skip a stage; its own start will report any other problem.
        return True, f"not measured: a short run at {found.size} px, batch {found.batch}, failed: {found.failed}"
    limit, memory_kind = find_limit(plan, found)
    need = used_memory(found) * (1 + ROOM)
    figures = (
        f"a short run at {found.size} px, batch {found.batch}, used up to {amount(used_memory(found))} of {memory_kind};"
        f" with a margin of {ROOM:.0%} that is {amount(need)} of {amount(limit)}"
    )
    return need <= limit, figures


def used_memory(found: Measurement) -> int:
    """Return the peak memory of the device if it has its own memory, because that runs out first; else the main memory."""
    return found.device[1] if found.device is not None and found.device[2] else found.peak


def find_limit(plan: Plan, found: Measurement) -> tuple[int, str]:
    """Return the limit in bytes, and which memory it applies to."""
    if found.device is not None and found.device[2]:
        return found.device[2], f"the memory of {found.device[0]}"
    return get_memory_limit(plan), "memory"


def get_memory_limit(plan: Plan) -> int:
    """Return the limit in bytes: the plan's budget, or the memory that is available now."""
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
    """Find out what fits with a few short runs, and with those already known. Return a message if there is no answer."""
    request = make_request({**plan.settings, **plan.overrides})
    found = [measured for measured in known if not measured.failed]
    too_large = [(measured.batch, measured.size, measured.failed) for measured in known if measured.failed]
    for batch, size in _choose_points(request.batch, request.size):
        if any((measured.batch, measured.size) == (batch, size) for measured in (*found, *known)):
            continue
        notify(f"trying batch {batch} at {size} px")
        measured = trial(plan, batch=batch, imgsz=size)
        if not measured.failed:
            found.append(measured)
        elif not found:
            return f"A short run at {size} px, batch {batch}, failed: {measured.failed}"
        else:
            too_large.append((batch, size, measured.failed))
    limit, memory_kind = find_limit(plan, found[0])
    base, bytes_per_pixel = fit_line(found)
    answer = Answer(limit, tuple(found), base, bytes_per_pixel, memory_kind, tuple(too_large))
    if not verify:
        return answer
    return _measure_without_mosaic(plan, _verify(plan, answer, notify, trial), notify, trial)


def _choose_points(batch: int, size: int) -> Iterator[tuple[int, int]]:
    """Yield the batches and sizes to measure, the smallest first because it may be the only one that fits."""
    smaller = max(MIN_SIDE, int(size * SMALLER_SHARE) // 32 * 32)
    yield from dict.fromkeys([(max(1, batch // 4), smaller), (max(1, batch // 4), size), (batch, size)])


def _verify(plan: Plan, answer: Answer, notify: Callable[[str], None], trial: Trial) -> Answer:
    """Verify the recommendation with a short run: the plan's own batch and size if they fit, else the nearest ones."""
    for _ in range(MAX_VERIFIED):
        pair = find_nearest(plan, answer)
        if pair is None:
            return answer
        batch, size = pair
        known = next((measured for measured in answer.measured if (measured.batch, measured.size) == pair), None)
        if known is None:
            notify(f"verifying batch {batch} at {size} px")
            known = trial(plan, batch=batch, imgsz=size)
        if not known.failed and used_memory(known) * (1 + ROOM) <= answer.limit:
            return _add_run(answer, known, recommended=known)
        answer = _add_run(answer, known)
    return answer


def _add_run(answer: Answer, run: Measurement, recommended: Measurement | None = None) -> Answer:
    """Return the answer with one more short run."""
    measured = answer.measured if run in answer.measured or run.failed else (*answer.measured, run)
    base, bytes_per_pixel = fit_line(list(measured))
    is_too_large = used_memory(run) * (1 + ROOM) > answer.limit
    why = run.failed or (f"it used {amount(used_memory(run))}" if is_too_large else "")
    too_large = (*answer.too_large, (run.batch, run.size, why)) if why else answer.too_large
    return replace(
        answer,
        measured=measured,
        base=base,
        bytes_per_pixel=bytes_per_pixel,
        too_large=too_large,
        recommended=recommended,
    )


def find_nearest(plan: Plan, answer: Answer) -> tuple[int, int] | None:
    """Return the plan's own batch and size if they fit; else its size with a smaller batch, which does not change the result because
    Ultralytics accumulates gradients up to nbs images; else smaller images.
    """
    request = make_request({**plan.settings, **plan.overrides})
    if answer.fits(request.batch, request.size):
        return request.batch, request.size
    smaller = [batch for batch in BATCHES if batch < request.batch and answer.fits(batch, request.size)]
    if smaller:
        return max(smaller), request.size
    sizes = [size for size in SIZES if size < request.size and answer.fits(1, size)]
    return (1, max(sizes)) if sizes else None


def _measure_without_mosaic(plan: Plan, answer: Answer, notify: Callable[[str], None], trial: Trial) -> Answer:
    """Measure the cost of mosaic: run the smallest batch and size without it."""
    measured = min(answer.measured, key=lambda measured: measured.load)
    if not {**plan.settings, **plan.overrides}.get("mosaic", 1.0):
        return answer
    notify(f"trying batch {measured.batch} at {measured.size} px without mosaic")
    without = trial(plan, batch=measured.batch, imgsz=measured.size, mosaic=0.0)
    if without.failed:
        return answer
    return replace(answer, without_mosaic=without)


def fit_line(found: list[Measurement]) -> tuple[float, float]:
    """Fit peak = base + slope * pixels of a batch by least squares, with a slope of at least 0."""
    n = len(found)
    if n == 1:
        return float(used_memory(found[0])), 0.0
    mean_x, mean_y = sum(measured.load for measured in found) / n, sum(used_memory(measured) for measured in found) / n
    spread = sum((measured.load - mean_x) ** 2 for measured in found)
    slope = (
        sum((measured.load - mean_x) * (used_memory(measured) - mean_y) for measured in found) / spread
        if spread
        else 0.0
    )
    slope = max(slope, 0.0)
    # Short runs are noisy: the line must not be below any measured value.
    base = max(used_memory(measured) - slope * measured.load for measured in found)
    return base, slope

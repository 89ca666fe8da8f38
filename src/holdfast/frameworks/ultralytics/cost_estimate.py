"""Estimates the memory and time of a whole plan, with bounds, from one short run of its largest stage. Pure functions.

The other stages are extrapolated in proportion to the pixels of a batch.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from holdfast.frameworks.ultralytics.short_run import ShortRunRequest, make_request
from holdfast.preflight.checks.estimates import UNCERTAINTY, Span
from holdfast.supervisor.stage_command import stages_of

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from holdfast.frameworks.ultralytics.short_run import Measurement
    from holdfast.frameworks.ultralytics.short_run_metrics import ShortRunTiming
    from holdfast.schema.plan import Plan, Stage

SCALED_UNCERTAINTY = 0.35
"""The uncertainty of a time that was extrapolated from another stage."""
MAX_GROWTH = 0.12
"""A share of the memory of a short run: allocators take a little more in a long training."""
MAX_SHRINKAGE = 0.05
LISTED_S = 0.0007
"""Seconds to list and verify one image before the first epoch, if there is no label cache yet."""
KEPT_FOR_MOSAIC = 8
"""Batches of images that each loader process keeps."""
MAX_KEPT = 1000
CHANNELS = 3
SHAPE = 0.8
"""The share of the square that a resized image fills: most images are not square."""


NOTHING = Span(0.0, 0.0, 0.0)


@dataclass(frozen=True)
class ImageCounts:
    """The number of images that a stage trains and validates with."""

    train: int
    val: int


@dataclass(frozen=True)
class StageTime:
    name: str
    epochs: int
    batches: int
    """Per epoch."""
    epoch: Span
    """Seconds per epoch, with its validation."""
    total: Span
    scaled: bool
    """Whether the time was extrapolated from another stage."""


@dataclass(frozen=True)
class Memory:
    training: Span
    """Bytes."""
    validation: Span
    more: dict[str, int]
    """Memory that a whole training needs in addition to a short run, by purpose; already included."""

    @property
    def peak(self) -> Span:
        return max(self.training, self.validation, key=lambda span: span.high)


def find_largest_stage(plan: Plan) -> int:
    """Return the index of the stage whose batches have the most pixels."""
    loads = []
    for stage in stages_of(plan):
        request = make_request(merge_settings(plan, stage))
        loads.append(float(request.batch) * request.size * request.size)
    return loads.index(max(loads))


def merge_settings(plan: Plan, stage: Stage) -> dict[str, Any]:
    return {**plan.settings, **stage.settings, **plan.overrides}


# --- memory -----------------------------------------------------------------------------------------------------------


def estimate_memory(measured: Measurement, settings: Mapping[str, Any], counted: ImageCounts) -> Memory:
    more = {name: bytes_ for name, bytes_ in _estimate_additional(measured, settings, counted).items() if bytes_ > 0}
    beyond = sum(more.values())
    return Memory(_memory_span(measured.training, beyond), _memory_span(measured.validation, beyond), more)


def _memory_span(bytes_: int, beyond: int) -> Span:
    return Span(
        bytes_ * (1 - MAX_SHRINKAGE) + 0.5 * beyond, float(bytes_ + beyond), bytes_ * (1 + MAX_GROWTH) + 1.25 * beyond
    )


def _estimate_additional(measured: Measurement, settings: Mapping[str, Any], counted: ImageCounts) -> dict[str, int]:
    image = int(CHANNELS * SHAPE * measured.size * measured.size)
    if settings.get("cache") in (True, "ram", "True"):
        rest = counted.train + counted.val - measured.images - measured.validated
        return {"all images, because of cache": max(0, rest) * image}
    kept_per_loader = min(counted.train, KEPT_FOR_MOSAIC * measured.batch, MAX_KEPT)
    loaders = max(1, measured.workers)
    measured_already = min(kept_per_loader, measured.images // loaders)
    return {"images kept for mosaic": loaders * (kept_per_loader - measured_already) * image}


# --- time -------------------------------------------------------------------------------------------------------------


def estimate_times(
    plan: Plan, measured: Measurement, counted: Sequence[ImageCounts], pace: ShortRunTiming | None = None
) -> list[StageTime]:
    """Estimate the time of each stage. `counted` are the images of each stage. `pace` replaces the wall-clock timing."""
    found = []
    largest = find_largest_stage(plan)
    for number, stage in enumerate(stages_of(plan)):
        settings = merge_settings(plan, stage)
        found.append(
            _estimate_stage(
                stage.name or plan.name or "the training",
                make_request(settings),
                counted[number],
                measured,
                pace or measured.wall,
                validates_every=plan.validation.every if settings.get("val", True) else 0,
                scaled=number != largest,
            )
        )
    return found


def sum_times(times: Sequence[StageTime]) -> Span:
    return sum((stage.total for stage in times), NOTHING)


def _estimate_stage(
    name: str,
    asked: ShortRunRequest,
    counted: ImageCounts,
    measured: Measurement,
    pace: ShortRunTiming,
    *,
    validates_every: int,
    scaled: bool,
) -> StageTime:
    batch = asked.batch if scaled else measured.batch
    larger = float(batch) * asked.size * asked.size / measured.load if scaled else 1.0
    larger_image = (asked.size / measured.size) ** 2 if scaled else 1.0
    batches = -(-counted.train // batch)
    # A last batch that is not full takes proportionally less time.
    worth = counted.train / batch
    closed = pace.closed if measured.closes else pace.batch
    trained = worth * larger * (asked.with_mosaic * pace.batch + (asked.epochs - asked.with_mosaic) * closed)
    validation = pace.validation * larger_image * counted.val / measured.validated if measured.validated else 0.0
    validations = _count_validations(asked.epochs, validates_every)
    after = pace.after
    if measured.validated:
        after += pace.validation * (counted.val / measured.validated - 1.0)
    listed = LISTED_S * max(0, counted.train + counted.val - measured.images - measured.validated)
    expected = pace.start + listed + trained + validations * validation + asked.epochs * pace.saving + max(0.0, after)
    unsure = (SCALED_UNCERTAINTY if scaled else UNCERTAINTY) + pace.spread / 2.0
    epoch = trained / asked.epochs + validation * validations / asked.epochs + pace.saving
    return StageTime(name, asked.epochs, batches, _time_span(epoch, unsure), _time_span(expected, unsure), scaled)


def _count_validations(epochs: int, every: int) -> int:
    """Return the number of validations. The last epoch is always validated."""
    return 1 if not every else epochs // every + (1 if epochs % every else 0)


def _time_span(seconds: float, unsure: float) -> Span:
    return Span(seconds / (1 + unsure), seconds, seconds * (1 + unsure))

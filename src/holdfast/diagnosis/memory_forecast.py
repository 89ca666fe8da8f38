"""When the memory of a training will be used up: a forecast from one run state, available at any time.

If epochs are known, the growth is measured from epoch to epoch. Everything that repeats in each epoch (its peaks, every
validation) is extrapolated, and the forecast is the step at which the first of these exceeds the limit. If no epochs are
known yet, the samples themselves are used. Then it is unknown whether the growth will stop on its own, so such a forecast
reaches only half as far again as the observed period, and is not `sure`.
"""

from __future__ import annotations

import math
from collections import defaultdict
from itertools import pairwise
from statistics import median
from typing import TYPE_CHECKING, Literal, NamedTuple

from holdfast.diagnosis.aggregators.memory import MIN_SAMPLES
from holdfast.diagnosis.growth import (
    MIN_LATE_SLOPE,
    Forecast,
    Growth,
    Repeat,
    forecast_crossing,
    growth,
    growth_by_epoch,
)
from holdfast.schema.units import GIB, size

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from holdfast.diagnosis.aggregators.memory import EpochMemory, EvaluationMemory, Memory, MemoryWindow, Point
    from holdfast.diagnosis.run_state import AttemptState, RunState

LIMITS = {
    "least_mib": 128.0,
    "budget_gib": 0.0,
    "epochs": 5,
    "epochs_early": 8,
    "reach": 20.0,
    "reach_without_epochs": 1.5,
    "hours": 48.0,
}
"""The limits of the rule memory-leak, which reports this forecast."""
PLACES = 10
"""Each epoch is divided into this many places."""
EARLY_PART = 0.45
"""As a fraction of the memory free at the first step: while less is used, more epochs must agree."""
LIMIT_SAMPLES = 9
EVALUATIONS = 4
"""The number of newest evaluations from which the next one is estimated."""

Series = Literal["rss", "both", "allocated"]
WHICH: Mapping[Series, str] = {
    "rss": "memory of all its processes",
    "both": "resident and driver memory together",
}
START_S = 60.0
"""If no steps are observed, growth over a shorter time is attributed to the start of the training."""


class Limit(NamedTuple):
    bytes: float
    why: str
    """The reason for this limit, as a clause."""


class Leak(NamedTuple):
    """Real and continuing growth, and what is known about it."""

    series: Series
    which: str
    by_step: bool
    growth: Growth
    first: Point
    last: Point
    """The first and the last point of the window in which the growth was found."""
    begin: Point
    """The first point after the first step."""
    by_epoch: bool
    settled: bool
    """Whether it continued through whole epochs: a cache that fills once per epoch is full by then."""
    limit: Limit | None = None
    forecast: Forecast | None = None
    """When the limit is reached; None if the growth stops in time, or if it is too early to know. If no steps are observed,
    these are times instead of steps."""

    def held(self, point: Point) -> float:
        return get_bytes(point, self.series)

    def seconds_until(self, x: float) -> float:
        if not self.by_step:
            return x - self.growth.until
        steps = self.last.step - self.first.step
        return (x - self.growth.until) * (self.last.at - self.first.at) / steps if steps > 0 else math.inf


def leak_of(state: RunState) -> Leak | None:
    """Return the growth of the machine's memory, or else that of a device with its own memory."""
    limits = state.get_limits("memory-leak", LIMITS)
    return _find_on_machine(state, limits) or _find_on_device(state, limits)


def planned_end(state: RunState) -> float | None:
    """Return the last planned step, if known. If the newest attempt is too short to know it, use the attempts before it."""
    planned = next((attempt.planned_epochs for attempt in reversed(state.attempts) if attempt.planned_epochs), None)
    ends = (attempt.pace.last_step_of(planned) for attempt in reversed(state.attempts))
    return next((end for end in ends if end is not None), None)


def get_bytes(point: Point, series: Series) -> float:
    return float(getattr(point, series) or 0.0)


def host_series(memory: Memory) -> Series:
    return "both" if memory.excludes_driver else "rss"


def machine_limit(state: RunState, series: Series, budget_gib: float = 0.0) -> Limit | None:
    """Return the memory that the training can use on this machine: its budget, or else all memory not used by others."""
    memory = state.attempt.memory
    if not memory.points:
        return None
    recent = memory.points[-LIMIT_SAMPLES:]
    free = median(get_bytes(point, series) + point.available for point in recent)
    started = state.started
    candidates = [Limit(free, f"other programs leave {size(free)} of this machine's memory")]
    if started is not None and started.memory_total:
        candidates.append(
            Limit(started.memory_total, f"this machine, or its container, has {size(started.memory_total)}")
        )
    if started is not None and started.memory_budget:
        candidates.append(Limit(started.memory_budget, f"the plan's budget is {size(started.memory_budget)}"))
    if budget_gib:
        candidates.append(Limit(budget_gib * GIB, f"memory-leak.budget_gib is {budget_gib:g}"))
    return min(candidates, key=lambda limit: limit.bytes)


def device_limit(attempt: AttemptState) -> Limit | None:
    """Return the limit of a device with its own memory, if the device reports it."""
    device = attempt.memory.device
    if device is None or not device.limit or device.allocated is None or attempt.memory.is_shared:
        return None
    return Limit(device.limit, f"{device.device} has {size(device.limit)}")


def _find_on_machine(state: RunState, limits: Mapping[str, float]) -> Leak | None:
    series = host_series(state.attempt.memory)
    found = _find_growth(state.attempt, series, WHICH[series])
    limit = machine_limit(state, series, limits["budget_gib"])
    return _add_forecast(state, found, limit, limits) if found is not None else None


def _find_on_device(state: RunState, limits: Mapping[str, float]) -> Leak | None:
    """Return the growth on a device with its own memory, with a forecast if the device reports its limit."""
    device = state.attempt.memory.device
    if device is None or device.allocated is None or state.attempt.memory.is_shared:
        return None
    found = _find_growth(state.attempt, "allocated", f"tensors on {device.device}")
    return _add_forecast(state, found, device_limit(state.attempt), limits) if found is not None else None


def _find_growth(attempt: AttemptState, series: Series, which: str) -> Leak | None:
    by_step = attempt.first_step_at is not None
    points = [point for point in attempt.memory.points if point.at >= (attempt.first_step_at or 0.0)]
    if not points:
        return None
    if not by_step and (attempt.torch is not None or points[-1].at - points[0].at < START_S):
        return None  # memory also grows while a training starts
    now = points[-1]
    levels = [((epoch.before + epoch.last) / 2.0, getattr(epoch.held, series)) for epoch in attempt.memory.epochs]
    found = growth_by_epoch(levels) if by_step else None
    by_epoch = found is not None
    if found is None:
        found = growth([(float(point.step) if by_step else point.at, get_bytes(point, series)) for point in points])
    elif now.step > found.until:
        found = found._replace(until=float(now.step), level=found.level + found.rate * (now.step - found.until))
    if found is None:
        return None
    first = next((point for point in points if (point.step if by_step else point.at) >= found.since), now)
    return Leak(series, which, by_step, found, first, now, points[0], by_epoch, settled=False)


def _add_forecast(state: RunState, leak: Leak, limit: Limit | None, limits: Mapping[str, float]) -> Leak:
    attempt = state.attempt
    epochs = attempt.pace.epochs_done
    continues = _continues(attempt.memory, leak) if leak.by_epoch and epochs <= limits["epochs"] else None
    settled = leak.by_epoch and (epochs > limits["epochs"] or (epochs == limits["epochs"] and continues is True))
    if limit is None:
        return leak._replace(settled=settled)
    start = leak.held(leak.begin)
    level = min(leak.growth.level, leak.held(leak.last))
    used = (level - start) / (limit.bytes - start) if limit.bytes > start else 1.0
    if used < EARLY_PART and (leak.growth.tail or epochs < limits["epochs_early"]):
        settled = False
    if continues is False:
        forecast = None
    elif leak.by_epoch:
        forecast = forecast_crossing(leak.growth, limit.bytes, _find_repeats(attempt.memory, leak))
    else:
        forecast = forecast_crossing(leak.growth, limit.bytes - _usual_spike(attempt, leak))
    if forecast is not None:
        reach = limits["reach" if settled else "reach_without_epochs"]
        if not settled and used >= EARLY_PART:
            reach *= 2.0
        if forecast.at - leak.growth.until > reach * (leak.growth.until - leak.growth.since):
            forecast = None
    return leak._replace(settled=settled, limit=limit, forecast=forecast)


def _continues(memory: Memory, leak: Leak) -> bool | None:
    """Return whether the current epoch continues the growth (a cache may just be full); None if it is too short to know."""
    newest, evaluated = memory.epochs[-1], list(memory.evaluations)[-1:]
    windows = [
        window for window in memory.windows if window.step > newest.last and not is_in_evaluation(window.at, evaluated)
    ]
    if len(windows) < MIN_SAMPLES:
        return None
    middle = windows[len(windows) // 2]
    passed = middle.step - (newest.before + newest.last) / 2.0
    now = median(getattr(window.mean, leak.series) for window in windows)
    return bool(now - getattr(newest.held, leak.series) >= MIN_LATE_SLOPE * leak.growth.rate * passed)


def _usual_spike(attempt: AttemptState, leak: Leak) -> float:
    """Return how far a validation, or else a single sample, usually rises above the points around it."""
    if leak.series == "allocated":
        return 0.0
    evaluations = list(attempt.memory.evaluations)[-EVALUATIONS:]
    if len(evaluations) >= 2:
        return max(0.0, median(_height_above_line(evaluation, leak) for evaluation in evaluations))
    points = [point for point in attempt.memory.points if point.at >= leak.begin.at]
    spikes = sorted(point.peak - point.rss for point in points[2 * len(points) // 3 :])
    return spikes[-1 - len(spikes) // 10]


def _find_repeats(memory: Memory, leak: Leak) -> list[Repeat]:
    """Return the peaks of the newest epochs and the validations, with their heights above the line of the growth."""
    evaluations = list(memory.evaluations)[-EVALUATIONS:] if leak.series != "allocated" else []
    every = steps_between_evaluations(evaluations)
    if every is None:
        return _find_peaks(memory.shapes, leak, [])
    above = [_height_above_line(evaluation, leak) for evaluation in evaluations]
    validations = Repeat(evaluations[-1].step, every, median(above), max(above))
    return [*_find_peaks(memory.shapes, leak, evaluations), validations]


def _find_peaks(
    shapes: Sequence[tuple[EpochMemory, list[MemoryWindow]]], leak: Leak, evaluations: Sequence[EvaluationMemory]
) -> list[Repeat]:
    """Return the height of each place of an epoch above the line, as the median over the newest epochs."""
    highest: dict[int, list[float]] = defaultdict(list)
    for epoch, windows in shapes:
        above: dict[int, float] = {}
        meanwhile = [
            evaluation
            for evaluation in evaluations
            if windows[0].at <= evaluation.during.ended and evaluation.during.began <= epoch.at
        ]
        for window in windows:
            if not is_in_evaluation(window.at, meanwhile):
                place = round(PLACES * (window.step - epoch.before) / (epoch.last - epoch.before))
                high = getattr(window.most, leak.series) - _line(leak.growth, window.step)
                above[place] = max(high, above.get(place, -math.inf))
        for place, high in above.items():
            highest[place].append(high)
    newest = shapes[-1][0]
    every = median(epoch.last - epoch.before for epoch, _ in shapes)
    return [
        Repeat(newest.before + place * every / PLACES, every, median(highs), max(highs))
        for place, highs in highest.items()
    ]


def is_in_evaluation(at: float, evaluations: Sequence[EvaluationMemory]) -> bool:
    return any(evaluation.during.began <= at <= evaluation.during.ended for evaluation in evaluations)


def steps_between_evaluations(evaluations: Sequence[EvaluationMemory]) -> float | None:
    """Return the number of steps from one validation to the next."""
    steps = [after.step - before.step for before, after in pairwise(evaluations) if after.step > before.step]
    return float(median(steps)) if steps else None


def evaluation_bytes(evaluation: EvaluationMemory, series: Series) -> float:
    return evaluation.during.rss + (evaluation.during.driver if series == "both" else 0)


def _height_above_line(evaluation: EvaluationMemory, leak: Leak) -> float:
    return evaluation_bytes(evaluation, leak.series) - _line(
        leak.growth, evaluation.step if leak.by_step else evaluation.during.ended
    )


def _line(growth: Growth, x: float) -> float:
    return growth.level + growth.rate * (x - growth.until)

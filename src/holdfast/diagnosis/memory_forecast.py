"""When the training's memory will be used up: the forecast of one image, readable at any time.

Where epochs are known, growth is judged from one to the next, and what comes again in each of them (the highest places of an
epoch, every validation) is carried along: the forecast is the step at which the first of these passes the limit. Where none
are known yet, the samples themselves are looked at; nobody can tell then whether it stops by itself, so such a forecast reaches
only half as far again as what was watched, and is not `sure`.
"""

from __future__ import annotations

import math
from collections import defaultdict
from itertools import pairwise
from statistics import median
from typing import TYPE_CHECKING, Literal, NamedTuple

from holdfast.diagnosis.aggregators.memory import MIN_SAMPLES
from holdfast.diagnosis.growth import STILL_GROWING, Forecast, Growth, Repeat, growth, growth_by_epoch, meets
from holdfast.diagnosis.units import GIB, size

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
"""Of the rule memory-leak, whose forecast this is."""
PLACES = 10
"""An epoch is looked at in so many places."""
EARLY_PART = 0.45
"""Of what there was at the first step: while less is used, more epochs must agree."""
LOOKS_AT_LIMIT = 9
EVALUATIONS = 4
"""The newest tell what the next one takes."""

Series = Literal["rss", "both", "allocated"]
WHICH: Mapping[Series, str] = {
    "rss": "memory of all its processes",
    "both": "resident and driver memory together",
}
START_S = 60.0
"""Where no steps are seen, a growth that is shorter than this is taken for a start."""


class Limit(NamedTuple):
    bytes: float
    why: str
    """A clause: what sets it."""


class MemoryForecast(NamedTuple):
    """When what the training holds will pass the limit."""

    limit: float
    why: str
    """What sets the limit."""
    held: float
    """Now."""
    level: float
    """Now, without noise and without what a validation takes."""
    by_step: bool
    """False where no steps are seen: then `at`, `earliest` and `latest` are times."""
    at: float
    """The step."""
    earliest: float
    latest: float
    seconds: float
    """From now."""
    seconds_earliest: float
    sure: bool
    """Whole epochs have shown that it does not stop by itself."""


class Leak(NamedTuple):
    """A growth that is real and goes on, and what is known about it."""

    series: Series
    which: str
    by_step: bool
    growth: Growth
    first: Point
    last: Point
    """Of the window that the growth was seen in."""
    begin: Point
    """The first after the first step."""
    by_epoch: bool
    settled: bool
    """It went on through whole epochs: what is filled once in an epoch is full by then."""
    limit: Limit | None = None
    forecast: Forecast | None = None

    def held(self, point: Point) -> float:
        return held_by(point, self.series)

    def seconds_until(self, x: float) -> float:
        if not self.by_step:
            return x - self.growth.until
        steps = self.last.step - self.first.step
        return (x - self.growth.until) * (self.last.at - self.first.at) / steps if steps > 0 else math.inf


def memory_forecast(state: RunState) -> MemoryForecast | None:
    """When memory will be used up; None where nothing grows, where it stops in time, or where it is too early to say."""
    return forecast_of(leak_of(state)) if state.attempts else None


def forecast_of(leak: Leak | None) -> MemoryForecast | None:
    if leak is None or leak.limit is None or leak.forecast is None:
        return None
    return MemoryForecast(
        limit=leak.limit.bytes,
        why=leak.limit.why,
        held=leak.held(leak.last),
        level=leak.growth.level,
        by_step=leak.by_step,
        at=leak.forecast.at,
        earliest=leak.forecast.earliest,
        latest=leak.forecast.latest,
        seconds=leak.seconds_until(leak.forecast.at),
        seconds_earliest=leak.seconds_until(leak.forecast.earliest),
        sure=leak.settled,
    )


def leak_of(state: RunState) -> Leak | None:
    """What grows: the memory of the machine first, else that of a device with memory of its own."""
    limits = state.tuned("memory-leak", LIMITS)
    return _on_machine(state, limits) or _on_device(state, limits)


def planned_end(state: RunState) -> float | None:
    """The last step that is planned, where that is known; by the attempts before this one where it is too young to tell."""
    planned = next((attempt.planned_epochs for attempt in reversed(state.attempts) if attempt.planned_epochs), None)
    ends = (attempt.pace.last_step_of(planned) for attempt in reversed(state.attempts))
    return next((end for end in ends if end is not None), None)


def held_by(point: Point, series: Series) -> float:
    return float(getattr(point, series) or 0.0)


def host_series(memory: Memory) -> Series:
    return "both" if memory.blind else "rss"


def machine_limit(state: RunState, series: Series, budget_gib: float = 0.0) -> Limit | None:
    """What the training can hold on this machine: its budget, else all there is but what others hold."""
    memory = state.attempt.memory
    if not memory.points:
        return None
    recent = memory.points[-LOOKS_AT_LIMIT:]
    free = median(held_by(point, series) + point.available for point in recent)
    started = state.started
    total = started.memory_total if started is not None else None
    budget = (started.memory_budget if started is not None else None) or 0
    candidates = [
        Limit(free, f"{size(free)} is what other programs leave of this machine's memory"),
        *([Limit(total, f"this machine, or its container, has {size(total)}")] if total else []),
        *([Limit(budget, f"the plan's budget is {size(budget)}")] if budget else []),
        *([Limit(budget_gib * GIB, f"memory-leak.budget_gib is {budget_gib:g}")] if budget_gib else []),
    ]
    return min(candidates, key=lambda limit: limit.bytes)


def device_limit(attempt: AttemptState) -> Limit | None:
    """Of a device with memory of its own, where it says what it can hold."""
    device = attempt.memory.device
    if device is None or not device.limit or device.allocated is None or attempt.memory.on_mps:
        return None
    return Limit(device.limit, f"{device.device} can hold {size(device.limit)}")


def _on_machine(state: RunState, limits: Mapping[str, float]) -> Leak | None:
    series = host_series(state.attempt.memory)
    found = _growing(state.attempt, series, WHICH[series])
    if found is None:
        return None
    return _with_forecast(state, found, machine_limit(state, series, limits["budget_gib"]), limits)


def _on_device(state: RunState, limits: Mapping[str, float]) -> Leak | None:
    """A device with memory of its own; there is a forecast where it says what it can hold."""
    device = state.attempt.memory.device
    if device is None or device.allocated is None or state.attempt.memory.on_mps:
        return None
    found = _growing(state.attempt, "allocated", f"tensors on {device.device}")
    return _with_forecast(state, found, device_limit(state.attempt), limits) if found is not None else None


def _growing(attempt: AttemptState, series: Series, which: str) -> Leak | None:
    by_step = attempt.first_step_at is not None
    points = [point for point in attempt.memory.points if point.at >= (attempt.first_step_at or 0.0)]
    if not points:
        return None
    if not by_step and (attempt.torch is not None or points[-1].at - points[0].at < START_S):
        return None  # a training that starts grows too
    now = points[-1]
    levels = [((epoch.before + epoch.last) / 2.0, getattr(epoch.held, series)) for epoch in attempt.memory.epochs]
    found = growth_by_epoch(levels) if by_step else None
    by_epoch = found is not None
    if found is None:
        found = growth([(float(point.step) if by_step else point.at, held_by(point, series)) for point in points])
    elif now.step > found.until:
        found = found._replace(until=float(now.step), level=found.level + found.rate * (now.step - found.until))
    if found is None:
        return None
    first = next((point for point in points if (point.step if by_step else point.at) >= found.since), now)
    return Leak(series, which, by_step, found, first, now, points[0], by_epoch, settled=False)


def _with_forecast(state: RunState, leak: Leak, limit: Limit | None, limits: Mapping[str, float]) -> Leak:
    attempt = state.attempt
    epochs = attempt.pace.epochs_done
    goes_on = _goes_on(attempt.memory, leak) if leak.by_epoch and epochs <= limits["epochs"] else None
    settled = leak.by_epoch and (epochs > limits["epochs"] or (epochs == limits["epochs"] and goes_on is True))
    if limit is None:
        return leak._replace(settled=settled)
    start = leak.held(leak.begin)
    level = min(leak.growth.level, leak.held(leak.last))
    used = (level - start) / (limit.bytes - start) if limit.bytes > start else 1.0
    if used < EARLY_PART and (leak.growth.tail or epochs < limits["epochs_early"]):
        settled = False
    if goes_on is False:
        forecast = None
    elif leak.by_epoch:
        forecast = meets(leak.growth, limit.bytes, _repeats(attempt.memory, leak))
    else:
        forecast = meets(leak.growth, limit.bytes - _usual_spike(attempt, leak))
    if forecast is not None:
        reach = limits["reach" if settled else "reach_without_epochs"]
        if not settled and used >= EARLY_PART:
            reach *= 2.0
        if forecast.at - leak.growth.until > reach * (leak.growth.until - leak.growth.since):
            forecast = None
    return leak._replace(settled=settled, limit=limit, forecast=forecast)


def _goes_on(memory: Memory, leak: Leak) -> bool | None:
    """Whether the epoch under way goes on like the few before it: what fills in even steps may have just stopped. None: it is
    too young to tell.
    """
    newest, evaluated = memory.epochs[-1], list(memory.evaluations)[-1:]
    windows = [
        window for window in memory.windows if window.step > newest.last and not is_in_evaluation(window.at, evaluated)
    ]
    if len(windows) < MIN_SAMPLES:
        return None
    middle = windows[len(windows) // 2]
    passed = middle.step - (newest.before + newest.last) / 2.0
    now = median(getattr(window.mean, leak.series) for window in windows)
    return bool(now - getattr(newest.held, leak.series) >= STILL_GROWING * leak.growth.rate * passed)


def _usual_spike(attempt: AttemptState, leak: Leak) -> float:
    """How far a validation, or else single samples, stand above the points that they are in."""
    if leak.series == "allocated":
        return 0.0
    evaluations = list(attempt.memory.evaluations)[-EVALUATIONS:]
    if len(evaluations) >= 2:
        return max(0.0, median(_above(one, leak) for one in evaluations))
    points = [point for point in attempt.memory.points if point.at >= leak.begin.at]
    spikes = sorted(point.peak - point.rss for point in points[2 * len(points) // 3 :])
    return spikes[-1 - len(spikes) // 10]


def _repeats(memory: Memory, leak: Leak) -> list[Repeat]:
    """The highest places of the newest epochs, and validations, as far as they stand above the line of the growth."""
    evaluations = list(memory.evaluations)[-EVALUATIONS:] if leak.series != "allocated" else []
    every = evaluated_every(evaluations)
    if every is None:
        return _places(memory.shapes, leak, [])
    above = [_above(one, leak) for one in evaluations]
    return [
        *_places(memory.shapes, leak, evaluations),
        Repeat(evaluations[-1].step, every, median(above), max(above)),
    ]


def _places(
    shapes: Sequence[tuple[EpochMemory, list[MemoryWindow]]], leak: Leak, evaluations: Sequence[EvaluationMemory]
) -> list[Repeat]:
    """How far each place of an epoch stands above the line, in the middle one of the newest epochs."""
    highest: dict[int, list[float]] = defaultdict(list)
    for epoch, windows in shapes:
        above: dict[int, float] = {}
        meanwhile = [one for one in evaluations if windows[0].at <= one.during.ended and one.during.began <= epoch.at]
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
    return any(one.during.began <= at <= one.during.ended for one in evaluations)


def evaluated_every(evaluations: Sequence[EvaluationMemory]) -> float | None:
    """Steps from one validation to the next."""
    steps = [after.step - before.step for before, after in pairwise(evaluations) if after.step > before.step]
    return float(median(steps)) if steps else None


def evaluation_held(one: EvaluationMemory, series: Series) -> float:
    return one.during.rss + (one.during.driver if series == "both" else 0)


def _above(one: EvaluationMemory, leak: Leak) -> float:
    return evaluation_held(one, leak.series) - _line(leak.growth, one.step if leak.by_step else one.during.ended)


def _line(growth: Growth, x: float) -> float:
    return growth.level + growth.rate * (x - growth.until)

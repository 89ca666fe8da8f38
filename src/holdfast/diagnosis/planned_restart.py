"""Whether to go on in a fresh process before memory is used up: a planned restart.

What has piled up in a process is gone with it. Where snapshots are taken, a training that would be killed can be stopped at a
moment of our own choosing and gone on with at that very point: no failure, no attempt spent, no number changed. It costs a
start, so it is done as late as is safe, and not at all where the training is done before, where memory does not grow, or where a
fresh process would soon stand where this one stands: then something has to change, and that is the ladder's part (`too_fast`).
"""

from __future__ import annotations

from bisect import bisect_left
from typing import TYPE_CHECKING, NamedTuple

from holdfast.diagnosis.memory_forecast import (
    EVALUATIONS,
    MemoryForecast,
    Series,
    device_limit,
    evaluated_every,
    evaluation_held,
    forecast_of,
    held_by,
    host_series,
    is_in_evaluation,
    leak_of,
    machine_limit,
    memory_forecast,
    planned_end,
)
from holdfast.diagnosis.units import MIB, duration, size

if TYPE_CHECKING:
    from collections.abc import Iterator

    from holdfast.diagnosis.aggregators.memory import Point
    from holdfast.diagnosis.memory_forecast import Limit
    from holdfast.diagnosis.run_state import AttemptState, RunState
    from holdfast.schema.plan import Plan

__all__ = ["MemoryForecast", "memory_forecast", "plans_restart", "too_fast"]

NEVER_BELOW = 0.6
"""Of the limit: while less is held, or less is held in the next validation, there is time."""
LATE = 0.85
"""Of the limit: what is held then is let go of, however slowly it grows."""
VERY_LATE = 0.92
"""The same, where no epochs have shown yet that it does not stop by itself."""
USED = 0.6
"""Of the room between the level after the start and the limit: a fresh process must gain something."""
MIN_ROOM = 0.05
"""Of the limit: growth that is less than this does not explain a shortage."""
GROWS = 0.02
"""Of the limit, since a third of this attempt: what has stopped growing needs no closer look."""
RESTARTS_WORTH = 3.0
"""A life must last as long as this many restarts, or the starts themselves eat up the time."""
UNSURE_WORTH = 10.0
"""The same, where it may be a cache that fills: a fresh process would fill it again."""
SNAPSHOT_S = 5.0
"""What a snapshot takes where none was timed yet."""
LOOKS = 3
"""Samples that may pass, and some seconds, until what was decided is carried out."""
LOOKS_S = 5.0
SLOWER = 2.0
SWAPPED = 256 * MIB
BEGINNING = 5
"""Points after the first step, of which the lowest is where a fresh process stands."""


class MemoryUse(NamedTuple):
    """Where a memory stands: the machine's, or that of a device with its own."""

    series: Series
    held: float
    """In training, now."""
    start: float
    """Right after the first step of this attempt: where a fresh process stands."""
    limit: float
    why: str

    @property
    def used(self) -> float:
        room = self.limit - self.start
        return (self.held - self.start) / room if room > 0.0 else 1.0


def plans_restart(state: RunState, plan: Plan) -> str | None:
    """The reason to stop this attempt after a snapshot and to go on at that point in a fresh process; None: there is none.

    It may be asked every second: nothing is computed while there is plenty of memory.
    """
    if not _may_restart(state, plan) or _is_done_within(state, _restart_s(state.attempt)):
        return None
    for standing in _standings(state):
        reason = _reason(state, standing)
        if reason is not None:
            return None if too_fast(state) else reason
    return None


def too_fast(state: RunState) -> bool:
    """Memory is used up so soon after a start that fresh processes would spend their time on starting."""
    attempt = state.attempt if state.attempts else None
    if attempt is None or attempt.first_step_at is None:
        return False
    lived = state.last_at - attempt.first_step_at
    if lived >= UNSURE_WORTH * _restart_s(attempt):
        return False
    forecast = memory_forecast(state)
    near = any(standing.held >= LATE * standing.limit for standing in _standings(state))
    if forecast is None:
        return near or _is_slowed_by_swap(attempt)
    worth = RESTARTS_WORTH if forecast.sure else UNSURE_WORTH
    return lived + forecast.seconds < worth * _restart_s(attempt)


def _may_restart(state: RunState, plan: Plan) -> bool:
    if not state.attempts or plan.observe_only or plan.on_finding != "act" or not plan.policy.planned_restarts:
        return False
    attempt = state.attempt
    snapshots = attempt.snapshots
    seen = attempt.coverage is not None and attempt.coverage.kinds.get("snapshots", "").startswith("seen")
    works = snapshots.failed is None and (snapshots.count > 0 or snapshots.restored is not None)
    return seen and works and attempt.first_step_at is not None and attempt.ended is None


# --- the reasons ------------------------------------------------------------------------------------------------------


def _reason(state: RunState, standing: MemoryUse) -> str | None:
    at_validation = _held_at_next_validation(state.attempt, standing)
    grew = standing.held - standing.start >= MIN_ROOM * standing.limit
    if grew and max(standing.held, at_validation) >= NEVER_BELOW * standing.limit:
        reason = _memory_ends(state, standing) or _validation_would_not_fit(state, standing, at_validation)
        if reason is not None:
            return reason
    return _swap_slows(state.attempt, standing)


def _memory_ends(state: RunState, standing: MemoryUse) -> str | None:
    """It grows, meets the limit before the end of the training, and it is as late as is safe."""
    points = state.attempt.memory.points
    if standing.held - held_by(points[len(points) // 3], standing.series) < GROWS * standing.limit:
        return None
    leak = leak_of(state)
    forecast = forecast_of(leak)
    if leak is None or forecast is None or leak.series != standing.series:
        return None
    end = planned_end(state)
    in_time = end is not None and forecast.by_step
    if in_time and forecast.earliest > (end or 0.0):
        return None
    late = (LATE if forecast.sure else VERY_LATE) * standing.limit
    is_late = forecast.level >= late and standing.used >= USED and not (in_time and forecast.at > (end or 0.0))
    if not is_late and forecast.seconds_earliest > _time_to_leave(state.attempt):
        return None
    when = f"near step {forecast.at:.0f}" if forecast.by_step else f"in {duration(forecast.seconds)}"
    return (
        f"memory grew from {size(standing.start)} to {size(standing.held)} and would be used up {when} "
        f"({standing.why}): a fresh process begins low again"
    )


def _validation_would_not_fit(state: RunState, standing: MemoryUse, at_validation: float) -> str | None:
    """What the last validation held, and what has been added since, is more than there is; and the next one is near."""
    attempt = state.attempt
    every = evaluated_every(list(attempt.memory.evaluations)[-EVALUATIONS:])
    if at_validation < standing.limit or every is None:
        return None
    spike = at_validation - standing.held
    if standing.start + spike >= (1.0 - MIN_ROOM) * standing.limit:
        return None
    step = attempt.memory.evaluations[-1].step + every
    end = planned_end(state)
    if end is not None and step > end:
        return None
    if (step - attempt.last_step) * _seconds_a_step(attempt) > _time_to_leave(attempt):
        return None
    return (
        f"the next validation, near step {step:.0f}, would need {size(at_validation)} ({standing.why}): it takes "
        f"{size(spike)} more than training, which has grown from {size(standing.start)} to {size(standing.held)}"
    )


def _swap_slows(attempt: AttemptState, standing: MemoryUse) -> str | None:
    """The machine swaps, steps have become slow, and what this process has added is what is missing."""
    if standing.series == "allocated" or not _is_slowed_by_swap(attempt):
        return None
    swapped = attempt.memory.samples[-1].swap - attempt.memory.points[0].swap
    highest = max(float(getattr(point, standing.series)) for point in attempt.memory.points)
    grown = highest - standing.start
    if grown < max(2.0 * MIN_ROOM * standing.limit, 0.5 * swapped):
        return None
    return (
        f"the machine swaps ({size(swapped)} since this attempt began) and steps have become slow, while the training's memory "
        f"has grown by {size(grown)}: a fresh process begins low again"
    )


def _is_slowed_by_swap(attempt: AttemptState) -> bool:
    pace = attempt.pace
    if pace.windows:
        window = pace.windows[-1]
        slow = window.usual is not None and window.step_time >= SLOWER * window.usual
        if slow and max(window.swapped_in, window.swap_grown) >= SWAPPED:
            return True
    if pace.epochs:
        epoch = pace.epochs[-1]
        slow = epoch.usual is not None and epoch.seconds >= SLOWER * epoch.usual
        return slow and max(epoch.swapped_in, epoch.swap_grown) >= SWAPPED
    return False


# --- where it stands --------------------------------------------------------------------------------------------------


def _standings(state: RunState) -> Iterator[MemoryUse]:
    attempt = state.attempt
    host = host_series(attempt.memory)
    limits: list[tuple[Series, Limit | None]] = [
        (host, machine_limit(state, host)),
        ("allocated", device_limit(attempt)),
    ]
    points = attempt.memory.points
    first = bisect_left(points, attempt.first_step_at or 0.0, key=lambda point: point.at)
    if first == len(points):
        return
    now = _in_training(attempt, points[-1].step)
    for series, limit in limits:
        if limit is not None:
            start = min(held_by(point, series) for point in points[first : first + BEGINNING])
            yield MemoryUse(series, held_by(now, series), start, limit.bytes, limit.why)


def _in_training(attempt: AttemptState, step: int) -> Point:
    """The newest point before a step that no validation is in: while it evaluates, no step is done."""
    points = attempt.memory.points
    evaluations = list(attempt.memory.evaluations)[-EVALUATIONS:]
    before = (point for point in reversed(points) if point.step < step and not is_in_evaluation(point.at, evaluations))
    found = next(before, points[-1])
    return found if found.at >= (attempt.first_step_at or 0.0) else points[-1]


def _held_at_next_validation(attempt: AttemptState, standing: MemoryUse) -> float:
    evaluations = attempt.memory.evaluations
    if not evaluations or standing.series == "allocated":
        return 0.0
    last = evaluations[-1]
    then = held_by(_in_training(attempt, last.step), standing.series)
    return evaluation_held(last, standing.series) + max(0.0, standing.held - then)


# --- time -------------------------------------------------------------------------------------------------------------


def _restart_s(attempt: AttemptState) -> float:
    """What a restart costs: a snapshot, and all that comes before a first step."""
    start = (attempt.first_step_at or attempt.started.at) - attempt.started.at
    return max(1.0, start) + _snapshot_s(attempt)


def _snapshot_s(attempt: AttemptState) -> float:
    newest = attempt.snapshots.newest
    return newest.stall + newest.seconds if newest is not None else SNAPSHOT_S


def _time_to_leave(attempt: AttemptState) -> float:
    """Until a snapshot is taken and written, with some to spare: it begins after the step under way, not in a validation."""
    samples = attempt.memory.samples
    between = samples[-1].at - samples[-2].at if len(samples) > 1 else 0.0
    return 2.0 * _snapshot_s(attempt) + 3.0 * _seconds_a_step(attempt) + LOOKS * between + LOOKS_S


def _seconds_a_step(attempt: AttemptState) -> float:
    pace = attempt.pace
    return pace.windows[-1].step_time if pace.windows else pace.step_seconds / max(1, attempt.steps)


def _is_done_within(state: RunState, seconds: float) -> bool:
    end = planned_end(state)
    return end is not None and (end - state.attempt.last_step) * _seconds_a_step(state.attempt) <= seconds

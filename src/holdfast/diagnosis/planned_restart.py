"""Planned restarts: whether to continue in a new process before memory is used up.

Memory that accumulated in a process is freed when the process exits. If snapshots are taken, a training that would be killed
can be stopped at a suitable moment and resumed at exactly that point: no failure, no attempt used up, no result changed. This
costs the time of a start, so it is done as late as is safe. It is not done if the training ends before, if memory does not
grow, or if a new process would soon use as much memory again: then a setting has to change, and that is what the remedies
are for (`grows_too_fast`).
"""

from __future__ import annotations

import math
from bisect import bisect_left
from typing import TYPE_CHECKING, NamedTuple

from holdfast.diagnosis.memory_forecast import (
    EVALUATIONS,
    Series,
    device_limit,
    evaluation_bytes,
    get_bytes,
    host_series,
    is_in_evaluation,
    leak_of,
    machine_limit,
    planned_end,
    steps_between_evaluations,
)
from holdfast.schema.units import MIB, duration, size

if TYPE_CHECKING:
    from collections.abc import Iterator

    from holdfast.diagnosis.aggregators.memory import Point
    from holdfast.diagnosis.memory_forecast import Limit
    from holdfast.diagnosis.run_state import AttemptState, RunState
    from holdfast.schema.plan import Plan

MIN_FILL = 0.6
"""As a fraction of the limit: while training and the next validation use less than this, there is no hurry."""
MAX_FILL = 0.85
"""As a fraction of the limit: at this level, restart no matter how slowly memory grows."""
MAX_FILL_UNSURE = 0.92
"""The same, if no epochs have shown yet that the growth does not stop on its own."""
MIN_USED = 0.6
"""As a fraction of the room between the level after the start and the limit: below this, a new process gains too little."""
MIN_ROOM = 0.05
"""As a fraction of the limit: less growth than this does not explain a shortage."""
MIN_GROWTH = 0.02
"""As a fraction of the limit, since the first third of this attempt: with less growth, nothing further is computed."""
MIN_RESTARTS = 3.0
"""An attempt must last at least as long as this many restarts, or too much of the time is spent on starts."""
MIN_RESTARTS_UNSURE = 10.0
"""The same, if the growth may be a cache that fills: a new process would fill it again."""
SNAPSHOT_S = 5.0
"""The assumed duration of a snapshot if none was measured yet."""
WAIT_SAMPLES = 3
"""Samples, plus some seconds, that may pass until a decision is carried out."""
WAIT_S = 5.0
MIN_SLOWDOWN = 2.0
MIN_SWAPPED = 256 * MIB
START_POINTS = 5
"""The number of points after the first step. The lowest of them is the level of a new process."""


class MemoryUse(NamedTuple):
    """The use of one memory: that of the machine, or that of a device with its own memory."""

    series: Series
    held: float
    """The current memory, outside of validations."""
    start: float
    """The memory right after the first step of this attempt: the level of a new process."""
    limit: float
    why: str

    @property
    def used(self) -> float:
        room = self.limit - self.start
        return (self.held - self.start) / room if room > 0.0 else 1.0


def find_restart_reason(state: RunState, plan: Plan) -> str | None:
    """Return the reason to stop this attempt after a snapshot and to resume from it in a new process; None: no reason.

    This may be called every second: it computes nothing while there is plenty of memory.
    """
    if not _may_restart(state, plan) or _ends_within(state, _restart_seconds(state.attempt)):
        return None
    for use in _list_memory_uses(state):
        reason = _find_reason(state, use)
        if reason is not None:
            return None if grows_too_fast(state) else reason
    return None


def grows_too_fast(state: RunState) -> bool:
    """Return whether memory is used up so soon after a start that new processes would mostly spend their time starting."""
    attempt = state.attempt if state.attempts else None
    if attempt is None or attempt.first_step_at is None:
        return False
    running_s = state.last_at - attempt.first_step_at
    if running_s >= MIN_RESTARTS_UNSURE * _restart_seconds(attempt):
        return False
    leak = leak_of(state)
    if leak is None or leak.forecast is None:
        near = any(use.held >= MAX_FILL * use.limit for use in _list_memory_uses(state))
        return near or _is_slowed_by_swap(attempt)
    min_restarts = MIN_RESTARTS if leak.settled else MIN_RESTARTS_UNSURE
    return running_s + leak.seconds_until(leak.forecast.at) < min_restarts * _restart_seconds(attempt)


def _may_restart(state: RunState, plan: Plan) -> bool:
    if not state.attempts or plan.observe_only or plan.on_finding != "act" or not plan.policy.planned_restarts:
        return False
    attempt = state.attempt
    snapshots = attempt.snapshots
    works = snapshots.failed is None and (snapshots.count > 0 or snapshots.restored is not None)
    return attempt.takes_snapshots and works and attempt.first_step_at is not None and attempt.ended is None


# --- the reasons ------------------------------------------------------------------------------------------------------


def _find_reason(state: RunState, use: MemoryUse) -> str | None:
    at_validation = _held_at_next_validation(state.attempt, use)
    grew = use.held - use.start >= MIN_ROOM * use.limit
    if grew and max(use.held, at_validation) >= MIN_FILL * use.limit:
        reason = _check_growth(state, use) or _check_validation(state, use, at_validation)
        if reason is not None:
            return reason
    return _check_swap(state.attempt, use)


def _check_growth(state: RunState, use: MemoryUse) -> str | None:
    """Return the reason if memory grows, reaches the limit before the training ends, and waiting longer would not be safe."""
    points = state.attempt.memory.points
    if use.held - get_bytes(points[len(points) // 3], use.series) < MIN_GROWTH * use.limit:
        return None
    leak = leak_of(state)
    if leak is None or leak.forecast is None or leak.series != use.series:
        return None
    at, earliest, _ = leak.forecast
    planned = planned_end(state) if leak.by_step else None
    end = planned if planned is not None else math.inf
    if earliest > end:
        return None
    late = (MAX_FILL if leak.settled else MAX_FILL_UNSURE) * use.limit
    is_late = leak.growth.level >= late and use.used >= MIN_USED and at <= end
    if not is_late and leak.seconds_until(earliest) > _time_to_leave(state.attempt):
        return None
    when = f"near step {at:.0f}" if leak.by_step else f"in {duration(leak.seconds_until(at))}"
    return (
        f"memory grew from {size(use.start)} to {size(use.held)} and would be used up {when} "
        f"({use.why}): a new process starts with low memory usage again"
    )


def _check_validation(state: RunState, use: MemoryUse, at_validation: float) -> str | None:
    """Return the reason if the next validation is near and would not fit into memory."""
    attempt = state.attempt
    every = steps_between_evaluations(list(attempt.memory.evaluations)[-EVALUATIONS:])
    if at_validation < use.limit or every is None:
        return None
    spike = at_validation - use.held
    if use.start + spike >= (1.0 - MIN_ROOM) * use.limit:
        return None
    step = attempt.memory.evaluations[-1].step + every
    end = planned_end(state)
    if end is not None and step > end:
        return None
    if (step - attempt.last_step) * _seconds_a_step(attempt) > _time_to_leave(attempt):
        return None
    return (
        f"the next validation, near step {step:.0f}, would need {size(at_validation)} ({use.why}): validation needs "
        f"{size(spike)} more than training, whose memory usage grew from {size(use.start)} to {size(use.held)}"
    )


def _check_swap(attempt: AttemptState, use: MemoryUse) -> str | None:
    """Return the reason if the machine swaps, steps became slow, and the growth of this process explains the shortage."""
    if use.series == "allocated" or not _is_slowed_by_swap(attempt):
        return None
    swapped = attempt.memory.samples[-1].swap - attempt.memory.points[0].swap
    highest = max(float(getattr(point, use.series)) for point in attempt.memory.points)
    grown = highest - use.start
    if grown < max(2.0 * MIN_ROOM * use.limit, 0.5 * swapped):
        return None
    return (
        f"the machine swaps ({size(swapped)} since this attempt began) and steps became slow, while the memory of the training "
        f"grew by {size(grown)}: a new process starts with low memory usage again"
    )


def _is_slowed_by_swap(attempt: AttemptState) -> bool:
    pace = attempt.pace
    if pace.windows:
        window = pace.windows[-1]
        slow = window.usual is not None and window.step_time >= MIN_SLOWDOWN * window.usual
        if slow and max(window.swapped_in, window.swap_grown) >= MIN_SWAPPED:
            return True
    if pace.epochs:
        epoch = pace.epochs[-1]
        slow = epoch.usual is not None and epoch.seconds >= MIN_SLOWDOWN * epoch.usual
        return slow and max(epoch.swapped_in, epoch.swap_grown) >= MIN_SWAPPED
    return False


# --- current memory use -----------------------------------------------------------------------------------------------


def _list_memory_uses(state: RunState) -> Iterator[MemoryUse]:
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
            start = min(get_bytes(point, series) for point in points[first : first + START_POINTS])
            yield MemoryUse(series, get_bytes(now, series), start, limit.bytes, limit.why)


def _in_training(attempt: AttemptState, step: int) -> Point:
    """Return the newest point before a step that is outside of validations. No step is done during a validation."""
    points = attempt.memory.points
    evaluations = list(attempt.memory.evaluations)[-EVALUATIONS:]
    before = (point for point in reversed(points) if point.step < step and not is_in_evaluation(point.at, evaluations))
    found = next(before, points[-1])
    return found if found.at >= (attempt.first_step_at or 0.0) else points[-1]


def _held_at_next_validation(attempt: AttemptState, use: MemoryUse) -> float:
    """Return the memory of the last validation plus the growth since then."""
    evaluations = attempt.memory.evaluations
    if not evaluations or use.series == "allocated":
        return 0.0
    last = evaluations[-1]
    then = get_bytes(_in_training(attempt, last.step), use.series)
    return evaluation_bytes(last, use.series) + max(0.0, use.held - then)


# --- time -------------------------------------------------------------------------------------------------------------


def _restart_seconds(attempt: AttemptState) -> float:
    """Return the cost of a restart: a snapshot, and everything before the first step."""
    start = (attempt.first_step_at or attempt.started.at) - attempt.started.at
    return max(1.0, start) + _snapshot_seconds(attempt)


def _snapshot_seconds(attempt: AttemptState) -> float:
    newest = attempt.snapshots.newest
    return newest.stall + newest.seconds if newest is not None else SNAPSHOT_S


def _time_to_leave(attempt: AttemptState) -> float:
    """Return the time until a snapshot is taken, after the current step, and written, with a margin."""
    samples = attempt.memory.samples
    between = samples[-1].at - samples[-2].at if len(samples) > 1 else 0.0
    return 2.0 * _snapshot_seconds(attempt) + 3.0 * _seconds_a_step(attempt) + WAIT_SAMPLES * between + WAIT_S


def _seconds_a_step(attempt: AttemptState) -> float:
    pace = attempt.pace
    return pace.windows[-1].step_time if pace.windows else pace.step_seconds / max(1, attempt.steps)


def _ends_within(state: RunState, seconds: float) -> bool:
    end = planned_end(state)
    return end is not None and (end - state.attempt.last_step) * _seconds_a_step(state.attempt) <= seconds

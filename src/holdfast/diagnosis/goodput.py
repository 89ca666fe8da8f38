"""How the time of a run was spent: every second belongs to one bucket."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from holdfast.diagnosis.run_state import AttemptState, RunState

BUCKETS = (
    "start_up",  # from the first start of the command to its first step
    "data_wait",  # waiting for batches
    "training",
    "evaluation",
    "saving",  # in torch.save
    "snapshot_stall",  # the training waited for a snapshot to be copied
    "lost_work",  # steps that had to be repeated, and steps that a crash left unfinished
    "restart",  # from any further start to its first step
    "waiting",  # between two attempts
    "other",  # time that no event accounts for: the exit of a process, work outside of steps
)


class Goodput(NamedTuple):
    wall_s: float
    buckets: dict[str, float]

    @property
    def useful_s(self) -> float:
        return self.buckets["training"] + self.buckets["data_wait"]

    @property
    def ratio(self) -> float:
        return min(1.0, self.useful_s / self.wall_s) if self.wall_s else 0.0


def goodput_of(state: RunState) -> Goodput:
    buckets = dict.fromkeys(BUCKETS, 0.0)
    if state.started is None or not state.attempts:
        return Goodput(0.0, buckets)
    wall = max(state.last_at - state.started.at - state.away, 1e-9)
    for attempt, following in zip(state.attempts, [*state.attempts[1:], None], strict=True):
        for name, seconds in _attribute_time(attempt, following, first=attempt is state.attempts[0]).items():
            buckets[name] += seconds
        if following is not None and attempt.ended is not None:
            buckets["waiting"] += max(0.0, following.started.at - attempt.ended.at)
    buckets["waiting"] = max(0.0, buckets["waiting"] - state.away)
    buckets["other"] = max(0.0, wall - sum(buckets.values()))
    return Goodput(wall, buckets)


def _attribute_time(attempt: AttemptState, following: AttemptState | None, *, first: bool) -> dict[str, float]:
    pace, lost_fraction = attempt.pace, _lost_fraction(attempt, following)
    computing = max(0.0, pace.step_seconds - pace.data_wait)
    times = {
        "training": computing * (1 - lost_fraction),
        "data_wait": pace.data_wait * (1 - lost_fraction),
        "lost_work": (computing + pace.data_wait) * lost_fraction,
        "evaluation": pace.evaluation_seconds,
        "saving": attempt.saves.seconds,
        "snapshot_stall": attempt.snapshots.stall,
        "start_up" if first else "restart": _time_to_first_step(attempt),
    }
    if following is not None and attempt.ended is not None and pace.last_step_at is not None:
        # A step may accumulate batches for a second. The part of it that a snapshot contains was not lost.
        left = max(0.0, attempt.ended.seconds - sum(times.values()))
        kept_until = max(pace.last_step_at, _snapshot_taken_at(attempt, following))
        end = attempt.ended.at if pace.exiting_at is None else min(pace.exiting_at, attempt.ended.at)
        unfinished = min(left, max(0.0, end - kept_until - pace.paused_since))
        times["lost_work"] += unfinished
        times["training"] += min(left - unfinished, kept_until - pace.last_step_at)
    return times


def _snapshot_taken_at(attempt: AttemptState, following: AttemptState) -> float:
    """Return the time when the snapshot was taken that the next attempt resumed from; 0 if unknown."""
    restored = following.snapshots.restored
    for snapshot in reversed(attempt.snapshots.known):
        if restored is not None and snapshot.path == restored.path:
            return snapshot.at - snapshot.seconds
    return 0.0


def _time_to_first_step(attempt: AttemptState) -> float:
    if attempt.first_step_at is None:
        return attempt.ended.seconds if attempt.ended is not None else 0.0
    return max(0.0, attempt.first_step_at - attempt.first_step_s - attempt.started.at)


def _lost_fraction(attempt: AttemptState, following: AttemptState | None) -> float:
    """Return the fraction of the recorded steps that was lost. Later steps count as unfinished in any case."""
    last = attempt.pace.last_step
    recorded = last - attempt.first_step + 1 if attempt.first_step is not None and last else 0
    return _count_lost(recorded, last, following) / recorded if recorded > 0 else 0.0


def lost_steps(attempt: AttemptState, following: AttemptState | None) -> int:
    """Return the number of steps of an attempt that the next attempt had to repeat."""
    return _count_lost(attempt.steps, attempt.last_step, following)


def _count_lost(steps: int, last_step: int, following: AttemptState | None) -> int:
    if following is None:
        return 0
    resumed_at = following.resumed.step if following.resumed is not None else 0
    return max(0, min(steps, last_step - resumed_at))

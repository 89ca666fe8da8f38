"""Where the time of a run went: every second is in one bucket."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from holdfast.diagnosis.run_state import AttemptState, RunState

BUCKETS = (
    "start_up",  # from the first start of the command to its first step
    "data_wait",  # for batches
    "training",
    "evaluation",
    "saving",  # in torch.save
    "snapshot_stall",  # the training waited for a snapshot to be copied
    "lost_work",  # steps that had to be made again, and those that a death left unfinished
    "restart",  # from any further start to its first step
    "waiting",  # between two attempts
    "other",  # what no event accounts for: the end of a process, work outside of steps
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
        for name, seconds in _spent(attempt, following, first=attempt is state.attempts[0]).items():
            buckets[name] += seconds
        if following is not None and attempt.ended is not None:
            buckets["waiting"] += max(0.0, following.started.at - attempt.ended.at)
    buckets["waiting"] = max(0.0, buckets["waiting"] - state.away)
    buckets["other"] = max(0.0, wall - sum(buckets.values()))
    return Goodput(wall, buckets)


def _spent(attempt: AttemptState, following: AttemptState | None, *, first: bool) -> dict[str, float]:
    lost = _lost_part(attempt, following)
    computing = max(0.0, attempt.pace.step_seconds - attempt.pace.data_wait)
    spent = {
        "training": computing * (1 - lost),
        "data_wait": attempt.pace.data_wait * (1 - lost),
        "lost_work": (computing + attempt.pace.data_wait) * lost,
        "evaluation": attempt.pace.evaluation_seconds,
        "saving": attempt.saves.seconds,
        "snapshot_stall": attempt.snapshots.stall,
        "start_up" if first else "restart": _until_the_first_step(attempt),
    }
    if following is not None and attempt.ended is not None and attempt.pace.last_step_at is not None:
        # A step may be a second of accumulated batches. What a snapshot held of the last one was not lost.
        left = max(0.0, attempt.ended.seconds - sum(spent.values()))
        kept_until = max(attempt.pace.last_step_at, _snapshot_taken_at(attempt, following))
        over = attempt.ended.at if attempt.pace.exiting_at is None else min(attempt.pace.exiting_at, attempt.ended.at)
        unfinished = min(left, max(0.0, over - kept_until - attempt.pace.paused_since))
        spent["lost_work"] += unfinished
        spent["training"] += min(left - unfinished, kept_until - attempt.pace.last_step_at)
    return spent


def _snapshot_taken_at(attempt: AttemptState, following: AttemptState) -> float:
    """When the snapshot was taken that the next life went on from; 0 where it is not known of."""
    restored = following.snapshots.restored
    taken = [
        snapshot for snapshot in attempt.snapshots.known if restored is not None and snapshot.path == restored.path
    ]
    return taken[-1].at - taken[-1].seconds if taken else 0.0


def _until_the_first_step(attempt: AttemptState) -> float:
    if attempt.first_step_at is None:
        return attempt.ended.seconds if attempt.ended is not None else 0.0
    return max(0.0, attempt.first_step_at - attempt.first_step_s - attempt.started.at)


def _lost_part(attempt: AttemptState, following: AttemptState | None) -> float:
    """Of the steps that the record tells of: what came after them is unfinished in any case."""
    if following is None or attempt.first_step is None or not attempt.pace.last_step:
        return 0.0
    told = attempt.pace.last_step - attempt.first_step + 1
    return max(0, min(told, attempt.pace.last_step - _kept_until(following))) / told if told > 0 else 0.0


def lost_steps(attempt: AttemptState, following: AttemptState | None) -> int:
    """Steps of an attempt that the next one had to make again."""
    if following is None or not attempt.steps:
        return 0
    return max(0, min(attempt.steps, attempt.last_step - _kept_until(following)))


def _kept_until(following: AttemptState) -> int:
    return following.resumed.step if following.resumed is not None else 0

"""Where the time of a run went: every second is in one bucket."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from holdfast.judge.picture import AttemptPicture, Picture

BUCKETS = (
    "start_up",  # from the first start of the command to its first step
    "data_wait",  # for batches
    "training",
    "evaluation",
    "saving",  # in torch.save
    "snapshot_stall",  # the training waited for a snapshot to be copied
    "lost_work",  # steps that had to be made again
    "restart",  # from any further start to its first step
    "waiting",  # between two attempts
    "other",  # what no event accounts for: the end of a process, work outside of steps
)


class Ledger(NamedTuple):
    wall_s: float
    buckets: dict[str, float]

    @property
    def useful_s(self) -> float:
        return self.buckets["training"] + self.buckets["data_wait"]

    @property
    def ratio(self) -> float:
        return min(1.0, self.useful_s / self.wall_s) if self.wall_s else 0.0


def ledger_of(picture: Picture) -> Ledger:
    buckets = dict.fromkeys(BUCKETS, 0.0)
    if picture.started is None or not picture.attempts:
        return Ledger(0.0, buckets)
    wall = max(picture.last_at - picture.started.at - picture.away, 1e-9)
    for attempt, following in zip(picture.attempts, [*picture.attempts[1:], None], strict=True):
        lost = _lost_part(attempt, following)
        computing = max(0.0, attempt.pace.step_seconds - attempt.pace.data_wait)
        buckets["training"] += computing * (1 - lost)
        buckets["data_wait"] += attempt.pace.data_wait * (1 - lost)
        buckets["lost_work"] += (computing + attempt.pace.data_wait) * lost
        buckets["evaluation"] += attempt.pace.evaluation_seconds
        buckets["saving"] += attempt.saves.seconds
        buckets["snapshot_stall"] += attempt.snapshots.stall
        buckets["start_up" if attempt is picture.attempts[0] else "restart"] += _until_the_first_step(attempt)
        if following is not None and attempt.ended is not None:
            buckets["waiting"] += max(0.0, following.started.at - attempt.ended.at)
    buckets["waiting"] = max(0.0, buckets["waiting"] - picture.away)
    buckets["other"] = max(0.0, wall - sum(buckets.values()))
    return Ledger(wall, buckets)


def _until_the_first_step(attempt: AttemptPicture) -> float:
    if attempt.first_step_at is None:
        return attempt.ended.seconds if attempt.ended is not None else 0.0
    return max(0.0, attempt.first_step_at - attempt.first_step_s - attempt.started.at)


def _lost_part(attempt: AttemptPicture, following: AttemptPicture | None) -> float:
    return lost_steps(attempt, following) / attempt.steps if attempt.steps else 0.0


def lost_steps(attempt: AttemptPicture, following: AttemptPicture | None) -> int:
    """Steps of an attempt that the next one had to make again."""
    if following is None or not attempt.steps:
        return 0
    kept_until = following.resumed.step if following.resumed is not None else 0
    return max(0, min(attempt.steps, attempt.last_step - kept_until))

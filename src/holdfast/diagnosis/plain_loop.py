"""Whether a training is a plain loop of the user. With `holdfast.guard`, such a loop would resume at the exact batch."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from holdfast.diagnosis.run_state import AttemptState, RunState


def is_plain_loop(state: RunState) -> bool:
    """Return whether there is no recognised framework, no use of guard, and no configured way to resume from a checkpoint."""
    trains = any(attempt.attached is not None for attempt in state.attempts)
    return trains and not any(map(_can_resume_otherwise, state.attempts))


def _can_resume_otherwise(attempt: AttemptState) -> bool:
    snapshots = attempt.snapshots
    guarded = snapshots.newest is not None or snapshots.failed is not None or snapshots.restored is not None
    return attempt.adapter is not None or guarded or not attempt.starts_over

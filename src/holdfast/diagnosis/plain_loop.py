"""Whether a training is a loop of the user's own, which `holdfast.guard` would make go on at the very batch."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from holdfast.diagnosis.run_state import AttemptState, RunState


def is_plain_loop(state: RunState) -> bool:
    """No framework was recognised, nothing of guard was seen, and nobody told how it goes on from a checkpoint."""
    trains = any(attempt.attached is not None for attempt in state.attempts)
    return trains and not any(map(_goes_on_otherwise, state.attempts))


def _goes_on_otherwise(attempt: AttemptState) -> bool:
    snapshots = attempt.snapshots
    guarded = snapshots.newest is not None or snapshots.failed is not None or snapshots.restored is not None
    return attempt.adapter is not None or guarded or not attempt.starts_over

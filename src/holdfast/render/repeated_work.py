"""What a death cost in work: the steps that were done again, and what is known of how they came out. One wording for all places."""

from __future__ import annotations

from typing import TYPE_CHECKING

from holdfast.diagnosis.goodput import lost_steps
from holdfast.render.text import plural

if TYPE_CHECKING:
    from holdfast.diagnosis.run_state import AttemptState


def done_again(attempt: AttemptState, following: AttemptState | None) -> str:
    """Of the steps of an attempt, by the next one; nothing where nothing was lost.

    Steps are counted by the heartbeat, up to the death. The losses that are compared are those of batches, which may be parts
    of a step, and the loss of the last one may not have been written any more: the two numbers need not be the same.
    """
    lost = lost_steps(attempt, following)
    replayed = following.snapshots.replayed if following is not None else None
    said = [f"{plural(lost, 'step')} had to be done again"] if lost else []
    if replayed is not None and replayed.differs_at is None:
        batches = plural(replayed.compared, "batch", "batches")
        said.append(f"{batches} could be compared with the first time: bit for bit the same")
    elif replayed is not None:
        said.append(f"not as the first time from step {replayed.differs_at} on")
    return "; ".join(said)

"""Where Holdfast's own record of an attempt has a gap: the heartbeat knows of steps that no line tells of, as after a full disk."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from holdfast.diagnosis.run_state import AttemptState

LOST_LINES = "events were lost"
"""How the probe's note begins when the disk takes its lines again."""
UNDER_WAY = 1
"""Steps by which the heartbeat may be ahead of the record without anything being missing."""


def gap_after(attempt: AttemptState) -> int | None:
    """The last step that the record tells of before it misses some; None where nothing is missing that is known of."""
    told = max(
        attempt.pace.last_step,
        max((epoch.last_step for epoch in attempt.pace.epochs), default=0),
        max((schedule.step for schedule in attempt.rates.schedules.values()), default=0),
    )
    if told and attempt.last_step > told + UNDER_WAY:
        return told
    noted = next((note for note in attempt.notes if note.what.startswith(LOST_LINES)), None)
    if noted is None:
        return None
    before = [epoch.last_step for epoch in attempt.pace.epochs if epoch.at <= noted.at]
    return max(before, default=0)

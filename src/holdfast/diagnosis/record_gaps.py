"""Gaps in Holdfast's own record of an attempt: the heartbeat counts steps that no event records, for example after a full
disk.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from holdfast.diagnosis.run_state import AttemptState

UNDER_WAY = 1
"""Steps by which the heartbeat may be ahead of the record although nothing is missing."""


def gap_after(attempt: AttemptState) -> int | None:
    """Return the last recorded step before a gap; None if no gap is known."""
    recorded = max(
        attempt.pace.last_step,
        max((epoch.last_step for epoch in attempt.pace.epochs), default=0),
        max((schedule.step for schedule in attempt.rates.schedules.values()), default=0),
    )
    if recorded and attempt.last_step > recorded + UNDER_WAY:
        return recorded
    lost = next((note for note in attempt.notes if note.code == "events-lost"), None)
    if lost is None:
        return None
    before = [epoch.last_step for epoch in attempt.pace.epochs if epoch.at <= lost.at]
    return max(before, default=0)

"""A snapshot could not be taken.

**What it means.** The training goes on, and the last good snapshot stays. Should it die now, more work than planned has to be done again.

**Why it happens.** The disk is full or cannot be written; there is too little memory for a copy of the state; or the state holds
something that cannot be kept without running code: an object that is neither a number, nor a string, a container or a tensor.

**What to do.** Make room: snapshots lie in the run's folder, and three are kept. Where an object is named, leave it out of what is given
to `holdfast.guard`, or give its `state_dict` only numbers and tensors. It is tried again after half a minute.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from holdfast.diagnosis.rule import Case, Rule
from holdfast.schema import events
from holdfast.schema.verdicts import Finding
from holdfast.testing.histories import losses, started, trains

if TYPE_CHECKING:
    from holdfast.diagnosis.run_state import RunState


def judge(state: RunState) -> Finding | None:
    snapshots = state.attempt.snapshots
    if snapshots.failed is None:
        return None
    newest = snapshots.newest or snapshots.restored
    kept = f"the last good one is of step {newest.step}" if newest is not None else "there is none yet"
    return Finding(
        rule="snapshot-failed",
        severity="warn",
        message=f"No snapshot could be taken at step {snapshots.failed.step}: {snapshots.failed.why}. The training goes on; {kept}.",
        evidence=[f"step {snapshots.failed.step}: {snapshots.failed.why}"],
        remedies=["make room on the disk of the run's folder", "leave out of the state what is named here"],
    )


_FAILED = events.SnapshotFailed(at=2.0, step=9, why="No space left on device")

RULE = Rule(
    id="snapshot-failed",
    kind="watching",
    on=(events.SnapshotFailed,),
    judge=judge,
    page=__doc__ or "",
    cases=[
        Case("a full disk", [*started(), *trains(), *losses(1.0), _FAILED], "warn"),
        Case(
            "one that was taken",
            [
                *started(),
                *trains(),
                events.Snapshot(at=1.0, step=9, position=9, path="s/9", bytes=1, stall=0.1, seconds=0.1),
            ],
            None,
        ),
    ],
)

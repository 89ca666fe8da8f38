"""A snapshot could not be taken.

**What it means.** The training continues, and the last good snapshot is kept. If the training crashes now, more work
than planned must be repeated.

**Why it happens.** The disk is full or not writable; there is too little memory for a copy of the state; or the state
contains an object that cannot be saved without running code: anything other than a number, a string, a container or a
tensor.

**What to do.** Free disk space: snapshots are stored in the run folder, and three are kept. If an object is named,
remove it from what is passed to `holdfast.guard`, or make its `state_dict` contain only numbers and tensors. Holdfast
tries again after half a minute.
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
    last_good = f"the last good snapshot is from step {newest.step}" if newest is not None else "there is none yet"
    return Finding(
        rule="snapshot-failed",
        severity="warn",
        message=f"No snapshot could be taken at step {snapshots.failed.step}: {snapshots.failed.why}. The training continues; {last_good}.",
        evidence=[f"step {snapshots.failed.step}: {snapshots.failed.why}"],
        remedies=["free space on the disk of the run folder", "remove the object that is named here from the state"],
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
            "a snapshot that was taken",
            [
                *started(),
                *trains(),
                events.Snapshot(at=1.0, step=9, position=9, path="s/9", bytes=1, stall=0.1, seconds=0.1),
            ],
            None,
        ),
    ],
)

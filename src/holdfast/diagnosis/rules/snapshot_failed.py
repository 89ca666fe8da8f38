"""A snapshot could not be taken.

**What it means.** Training continues, and the last good snapshot is kept. If the process crashes now, more work than
usual must be repeated.

**Why it happens.** The disk is full or not writable, or there is too little memory for a copy of the state. Or the
state contains an object that a snapshot cannot store. Snapshots store only numbers, strings, containers, tensors and
arrays, so that loading one never runs code.

**What to do.** Free disk space: snapshots are stored in the run folder, and the newest three are kept. If the finding
names an object, do not pass it to `holdfast.guard`, or make its `state_dict` contain only numbers and tensors. Holdfast
waits at least 30 seconds before it tries again.

**Severity.** It is always reported as `warn`.
"""

from __future__ import annotations

from holdfast.diagnosis.rule import Case, Finding, Rule, RunState
from holdfast.schema import events
from holdfast.testing.histories import losses, trains


def judge(state: RunState) -> Finding | None:
    snapshots = state.attempt.snapshots
    if snapshots.failed is None:
        return None
    newest = snapshots.newest or snapshots.restored
    last_good = f"the last good snapshot is from step {newest.step}" if newest is not None else "there is none yet"
    return Finding(
        severity="warn",
        message=f"No snapshot could be taken at step {snapshots.failed.step}: {snapshots.failed.why}. Training continues; {last_good}.",
        evidence=[f"step {snapshots.failed.step}: {snapshots.failed.why}"],
        remedies=[
            "free space on the disk of the run folder",
            "if the message names an object, do not pass it to holdfast.guard, or remove it from the state",
        ],
    )


_FAILED = events.SnapshotFailed(at=2.0, step=9, why="No space left on device")

RULE = Rule(
    kind="watching",
    on=(events.SnapshotFailed,),
    judge=judge,
    cases=lambda: [
        Case("a full disk", "warn", trains(), losses(1.0), _FAILED),
        Case(
            "a snapshot that was taken",
            None,
            trains(),
            events.Snapshot(at=1.0, step=9, position=9, path="s/9", bytes=1, stall=0.1, seconds=0.1),
        ),
    ],
)

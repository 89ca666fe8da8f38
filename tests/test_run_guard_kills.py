"""A training under the supervisor that is killed where it hurts most: inside a snapshot's write, during a restart, on a full disk."""

from __future__ import annotations

import sys

from running import holdfast_run
from test_run_guard import bare, script

from holdfast.schema import events

HURT = """
import errno
from holdfast_probe.guard import Guard
from holdfast_probe.snapshots.fs import Files

ATTEMPT = int(os.environ["HOLDFAST_ATTEMPT"])
FOLDER = os.environ["HOLDFAST_SNAPSHOTS"]
write, restore = Files.write, Guard._restore
heads = []
found = sorted(os.listdir(FOLDER), key=lambda name: (name[0] == ".", name)) if os.path.exists(FOLDER) else []
print("found", *(name for name in found if "snapshot" in name or name.endswith(".tmp")), flush=True)

def die():
    os.kill(os.getpid(), signal.SIGKILL)

def torn(files, descriptor, data):
    if bytes(data[:8]) == b"holdfast":
        heads.append(descriptor)
    elif len(heads) == 6:  # the head of this one is on the disk, and half of its numbers
        write(files, descriptor, bytes(data)[: len(data) // 2])
        die()
    write(files, descriptor, data)

def full(files, descriptor, data):
    raise OSError(errno.ENOSPC, "No space left on device")

def die_when_restored(guard, snapshot):
    restore(guard, snapshot)
    die()

if ATTEMPT == 1:
    Files.write = torn
elif ATTEMPT == 2:
    Guard._restore = die_when_restored
elif ATTEMPT == 3:
    Files.write = full

def after(done):
    if ATTEMPT == 1:
        run._snapshots.flush()  # one after every batch
    if ATTEMPT == 3 and done == 20:
        run._snapshots.flush()
        die()
"""


def test_it_ends_the_same_and_leaves_nothing_half_written(tmp_path):
    """Three deaths, each at one of these places, and the same weights in the end, bit for bit."""
    expected = bare(tmp_path)
    options = ["--max-lost-work", 0, "--max-attempts", 5]
    ran = holdfast_run(tmp_path, sys.executable, script(tmp_path, HURT), options=options)
    assert ran.code == 0, ran.stderr
    *found, last = (line.split() for line in ran.stdout.strip().splitlines())
    assert last == [expected]
    # Inside a write: the one before is gone on from, and what is half-written is never taken for one.
    whole = [f"{position:012d}.rank-0-of-1.snapshot" for position in (2, 3, 4)]
    assert [names[1:4] for names in found] == [[], whole, whole, whole]
    left = found[1][4:]
    assert [names[4:] for names in found[1:]] == [left] * 3
    assert [name.startswith(".holdfast-") and name.endswith(".tmp") for name in left] == [True]
    assert [attempt["cause"] for attempt in ran.summary["attempts"]] == [*["killed-externally"] * 3, None]
    # During the restart, and on the full disk: each time from the same one again.
    assert [(event.step, event.exact) for event in ran.of(events.Restored)] == [(4, True)] * 3
    assert [event.why for event in ran.of(events.SnapshotFailed)] == ["No space left on device"]
    assert not [path for path in ran.run.snapshots.iterdir() if "snapshot" in path.name]
    # What whoever watches the terminal reads, as it happens.
    assert "No snapshot could be taken" in ran.stderr
    assert "No space left on device" in ran.stderr

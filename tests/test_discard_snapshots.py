"""Snapshots of a spoiled state are removed, also those that the journal never heard of, and no others."""

from __future__ import annotations

import json
import os
import struct
import sys
import tracemalloc

import pytest
from running import holdfast, holdfast_run
from test_run_guard import script

from holdfast.probe.holdfast_probe.snapshots.fs import Files
from holdfast.probe.holdfast_probe.snapshots.snapshot_file import MAGIC
from holdfast.probe.holdfast_probe.snapshots.store import Store, part_name
from holdfast.supervisor.discard_snapshots import discard_corrupt

SINCE = 12
TOLD_OF_THE_FIRST_ONLY = """
import glob
def seen(count):
    while len(glob.glob(os.environ["HOLDFAST_SNAPSHOTS"] + "/*.snapshot")) < count:
        time.sleep(0.01)
def after(done):
    if os.environ["HOLDFAST_ATTEMPT"] != "1":
        return
    if done == 8:
        run.snapshot()
    elif done == 10:
        seen(1)
        tell = run._snapshots._emit
        run._snapshots._emit = lambda event, **fields: None if event == "snapshot" else tell(event, **fields)
    elif done == 12:
        with torch.no_grad():
            model[0].weight.fill_(float("nan"))
    elif done == 14:
        run.snapshot()
    elif done > 15:
        seen(2)
        time.sleep(0.2)
"""


def written(folder, position, step, rank=0, world_size=1):
    store = Store(str(folder), rank, world_size)
    header = json.dumps({"tree": [[]] * 1000, "tensors": [], "position": position, "step": step})
    return store.write(position, header, memoryview(b"tensors"))


def left(folder):
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())


def test_one_that_the_journal_does_not_know(tmp_path):
    good, corrupt = tmp_path / part_name(8, 0, 1), tmp_path / part_name(14, 0, 1)
    written(tmp_path, 8, 8)
    written(tmp_path, 14, 14)
    (tmp_path / "trace").write_bytes(b"losses")
    (tmp_path / "last-000001.pt").write_bytes(b"of Ultralytics")
    discard_corrupt(tmp_path, {good: 8}, SINCE)
    assert good.exists()
    assert not corrupt.exists()
    assert left(tmp_path) == [good.name, "last-000001.pt"]


def test_good_ones_that_the_journal_does_not_know_stay(tmp_path):
    """A position is not a step: a training that accumulates has more batches than steps."""
    written(tmp_path, 40, SINCE - 1)
    written(tmp_path, 44, SINCE)
    discard_corrupt(tmp_path, {}, SINCE)
    assert left(tmp_path) == [part_name(40, 0, 1)]


def test_in_the_folders_of_later_trainings_and_of_the_users_choice(tmp_path):
    run, own = tmp_path / "run" / "snapshots", tmp_path / "own"
    for folder in (own, own / "guard-2", run, run / "training-2"):
        written(folder, 8, 8)
        written(folder, 14, 14)
        (folder / "trace").write_bytes(b"losses")
    discard_corrupt(run, {own / part_name(8, 0, 1): 8}, SINCE)
    folders = ("own", "own/guard-2", "run/snapshots", "run/snapshots/training-2")
    assert left(tmp_path) == sorted(f"{folder}/{part_name(8, 0, 1)}" for folder in folders)


def test_of_several_ranks_all_parts_go(tmp_path):
    for position in (8, 14):
        zero, one = Store(str(tmp_path), 0, 2), Store(str(tmp_path), 1, 2)
        for store in (zero, one):
            store.write(position, json.dumps({"position": position, "step": position}), memoryview(b""))
        assert zero.commit()
    assert Store(str(tmp_path), 0, 2).positions() == [14, 8]
    discard_corrupt(tmp_path, {tmp_path / part_name(8, 0, 2): 8}, SINCE)
    assert Store(str(tmp_path), 0, 2).positions() == [8]
    assert not [name for name in left(tmp_path) if name.startswith(f"{14:012}")]
    assert len(left(tmp_path)) == 4


def test_the_files_own_word_counts(tmp_path):
    """It was written again by a life that was killed before it could tell of it."""
    path = tmp_path / part_name(14, 0, 1)
    written(tmp_path, 14, 20)
    discard_corrupt(tmp_path, {path: 7}, SINCE)
    assert left(tmp_path) == []


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"holdfast",
        MAGIC,
        MAGIC + struct.pack("<Q", 5),
        MAGIC + struct.pack("<Q", 1 << 62) + b"{}",
        MAGIC + struct.pack("<Q", 2) + b"{}",
        MAGIC + struct.pack("<Q", 13) + b'{"step":"one"',
        MAGIC + struct.pack("<Q", 200_006) + b'{"a":' + b"[" * 200_001,
    ],
)
def test_what_cannot_be_read_is_not_trusted(tmp_path, content):
    """Unless the journal knows that it is good: then it stays, and the training itself finds out whether it is whole."""
    unknown, known = tmp_path / part_name(14, 0, 1), tmp_path / part_name(9, 0, 1)
    for path in (unknown, known):
        path.write_bytes(content)
    discard_corrupt(tmp_path, {known: 9}, SINCE)
    assert left(tmp_path) == [known.name]


def test_things_that_are_no_files_are_not_read(tmp_path):
    """A pipe that is read would never end. What could not be known is not gone on from; a folder stays."""
    (tmp_path / part_name(14, 0, 1)).mkdir()
    os.mkfifo(tmp_path / part_name(15, 0, 1))
    discard_corrupt(tmp_path, {}, SINCE)
    discard_corrupt(tmp_path / "nothing", {}, SINCE)
    assert [path.name for path in tmp_path.iterdir()] == [part_name(14, 0, 1)]


def test_a_long_header_takes_no_more_memory_than_its_length(tmp_path):
    """Of nested lists, which as objects of Python would be twenty times as large."""
    header = json.dumps({"tree": [[]] * 2_000_000, "step": 3})
    store = Store(str(tmp_path), files=Files())
    store.write(3, header, memoryview(b""))
    tracemalloc.start()
    discard_corrupt(tmp_path, {}, SINCE)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 2 * len(header)
    assert left(tmp_path) == [part_name(3, 0, 1)]


def test_a_run_does_not_go_on_from_it(tmp_path):
    """A NaN after step 12, and a snapshot of it that nobody was told of: `holdfast resume` goes on from the one before."""
    ran = holdfast_run(
        tmp_path,
        sys.executable,
        script(tmp_path, TOLD_OF_THE_FIRST_ONLY),
        options=["--max-lost-work", "3600", "--max-attempts", "1"],
    )
    assert ran.code in (3, 4), ran.stderr
    there = left(tmp_path / "run" / "snapshots")
    assert len([name for name in there if name.endswith(".snapshot")]) == 2
    ran = holdfast(tmp_path, "resume", "run")
    assert ran.code == 0, ran.stderr
    assert ran.summary["attempts"][1]["resumed"]["step"] == 8

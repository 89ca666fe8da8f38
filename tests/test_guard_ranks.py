"""Two ranks under `holdfast.guard`: each writes its own part, all go on from the same snapshot, and they end as if never killed."""

from __future__ import annotations

import errno
import importlib
import json
import os
import sys
from pathlib import Path

import guarded_ranks
import pytest
import torch
from guarded import train as train_alone
from guarded_ranks import Death, Ranks
from running import holdfast_run

from holdfast.probe.holdfast_probe.snapshots.fs import Files
from holdfast.probe.holdfast_probe.snapshots.snapshotter import BATCHES_AHEAD, Snapshotter
from holdfast.probe.holdfast_probe.snapshots.store import Store

TORCHRUN = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]


@pytest.fixture(scope="module", autouse=True)
def warm(tmp_path_factory):
    """What torch imports late is imported before anything is forked."""
    train_alone(tmp_path_factory.mktemp("warm") / "s")
    importlib.import_module("torch._dynamo.trace_rules")  # a process group asks for it where a compiler was imported


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """What each rank comes to when nothing happens."""
    found = Ranks(tmp_path_factory.mktemp("whole") / "s").live()
    assert len(set(digests(found))) == 2  # each has random numbers and averages of its own
    return digests(found)


def digests(found):
    return [one["digest"] for one in found]


def restored(found):
    return [one["restored"] for one in found]


@pytest.mark.parametrize("rank", [0, 1])
def test_killed_where_snapshots_are_taken_when_they_are_due(tmp_path, whole, rank):
    """One rank is killed and the other ended, twice: both go on from the position that they had agreed on, the end of an epoch."""
    ranks = Ranks(tmp_path / "s", max_lost_work=0.0)
    assert ranks.live(Death(rank, "after batch", 22, once_there="*/*.commit")) is None
    assert ranks.live(Death(rank, "entered", 0)) is None
    found = ranks.live()
    assert digests(found) == whole
    assert restored(found) == [BATCHES_AHEAD, BATCHES_AHEAD]
    assert list((tmp_path / "s").iterdir()) == []


def test_killed_between_the_parts_and_the_commit_all_go_on_from_the_one_before(tmp_path, whole):
    """Both parts of batch 10 are on the disk, but it never counted: both ranks have the state of batch 5, half of a step."""
    folder = tmp_path / "s"
    ranks = Ranks(folder, asks_every=5)
    assert ranks.live(Death(0, "commit", 10)) is None
    assert len(list(folder.glob("000000000010.rank-?-of-2.snapshot"))) == 2
    assert [path.name for path in folder.glob("*.commit")] == ["000000000005.of-2.commit"]
    found = ranks.live()
    assert restored(found) == [5, 5]
    assert digests(found) == whole


def test_nothing_is_thrown_away_before_all_have_left(tmp_path, whole):
    """Rank 0 is through when rank 1 dies in its last moment: both still have something to go on from, and then it is removed."""
    ranks = Ranks(tmp_path / "s", asks_every=5)
    assert ranks.live(Death(1, "last batch", 0, once_there="left-0")) is None
    found = ranks.live()
    assert restored(found) in ([35, 35], [40, 40])  # as far as the last one got
    assert digests(found) == whole
    assert list((tmp_path / "s").iterdir()) == []


def test_what_an_earlier_life_had_begun_is_never_joined_to_a_later_one(tmp_path):
    """Its parts, and the position that it had agreed on, mean nothing any more."""

    def write(rank, position):
        header = json.dumps({"position": position, "step": position, "tree": ["dict", []], "tensors": []})
        ranks[rank].write(position, header, memoryview(b""))

    ranks = [Store(str(tmp_path), rank, 2) for rank in (0, 1)]
    write(1, 10)
    ranks[0].announce(26)
    assert [rank.begin(torch) for rank in ranks] == [None, None]
    assert ranks[1].read_announced() == -1
    write(0, 10)
    assert not ranks[0].commit()
    write(1, 10)
    assert ranks[0].commit()
    assert [rank.begin(torch).position for rank in ranks] == [10, 10]


def test_what_a_rank_is_ahead_by_is_left_alone(tmp_path):
    """Rank 1 has written batch 10, and half of batch 15, when rank 0 comes to count batch 5."""

    def write(rank, position):
        header = json.dumps({"position": position, "step": position, "tree": ["dict", []], "tensors": []})
        return ranks[rank].write(position, header, memoryview(b""))

    ranks = [Store(str(tmp_path), rank, 2) for rank in (0, 1)]
    write(0, 5)
    write(1, 5)
    ahead = Path(write(1, 10))
    half = tmp_path / f".holdfast-{os.getpid()}-{15:016x}.tmp"
    half.touch()
    assert ranks[0].commit()
    assert ahead.exists()
    assert half.exists()
    write(0, 10)
    assert ranks[0].commit()


def test_what_counted_and_was_torn_does_not_outlive_what_is_gone_on_from(tmp_path):
    def write(position):
        header = json.dumps({"position": position, "step": position, "tree": ["dict", []], "tensors": []})
        for rank in (1, 0):
            path = ranks[rank].write(position, header, memoryview(b""))
        assert ranks[0].commit()
        return path

    ranks = [Store(str(tmp_path), rank, 2) for rank in (0, 1)]
    write(5)
    Path(write(10)).write_bytes(b"torn")
    assert [rank.begin(torch).position for rank in ranks] == [5, 5]
    assert ranks[0].positions() == [5]


def test_a_position_is_taken_once(tmp_path):
    """An epoch's end is asked about twice. Two parts of one position could be joined to a snapshot that never was."""
    ranks = [
        Snapshotter(torch, Store(str(tmp_path), rank, 2), lambda *_, **__: None, max_lost_seconds=0.0)
        for rank in (0, 1)
    ]
    assert [one.is_due(1) for one in ranks] == [False, False]
    at = 1 + BATCHES_AHEAD
    assert [one.is_due(at) for one in ranks] == [True, True]
    assert [one.take(at, at, dict, {}) for one in ranks] == [True, True]
    assert [one.is_due(at) for one in ranks] == [False, False]
    assert [one.take(at, at, dict, {}) for one in ranks] == [False, False]
    for one in ranks:
        one.flush()
    assert Store(str(tmp_path), 1, 2).read_newest(torch).position == at


def test_a_full_disk_does_not_stop_ranks_that_agree(tmp_path):
    """They say it and go on without."""

    class Full(Files):
        def create(self, path):
            raise OSError(errno.ENOSPC, "No space left on device", path)

    told = []
    store = Store(str(tmp_path), 0, 2, files=Full())
    rank = Snapshotter(torch, store, lambda event, **fields: told.append((event, fields)), max_lost_seconds=0.0)
    assert not any(rank.is_due(position) for position in range(1, 2 * BATCHES_AHEAD))
    assert told == [("snapshot-failed", {"step": 1 + BATCHES_AHEAD, "why": "No space left on device"})]


def test_under_torchrun_and_the_supervisor(tmp_path, whole):
    """Rank 1 is killed, torchrun ends rank 0, Holdfast starts both again: the same end, without a line of it done over."""
    ran = holdfast_run(tmp_path, *TORCHRUN, guarded_ranks.__file__, options=["--max-lost-work", 0])
    assert ran.code == 0, ran.stderr
    assert json.loads(ran.stdout.splitlines()[-1])["digest"] == whole[0]
    first, second = ran.summary["attempts"]
    assert first["cause"] == "killed-externally"
    assert second["resumed"]["how"] == "snapshot"
    assert second["first_step"] == second["resumed"]["step"] + 1 > BATCHES_AHEAD // 2

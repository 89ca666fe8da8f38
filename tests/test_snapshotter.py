"""When a snapshot is taken, what the training waits for, and what becomes of one that cannot be written."""

import errno
import threading

import pytest
import torch

from holdfast.probe.holdfast_probe.snapshots.capture import Capture
from holdfast.probe.holdfast_probe.snapshots.cost_model import MAX_FORGIVEN_SECONDS, CostModel
from holdfast.probe.holdfast_probe.snapshots.fs import Files
from holdfast.probe.holdfast_probe.snapshots.interval import (
    compute_loan,
    expected_attempt_seconds,
    seconds_between,
    seconds_until_affordable,
)
from holdfast.probe.holdfast_probe.snapshots.snapshotter import Snapshotter
from holdfast.probe.holdfast_probe.snapshots.store import Store


@pytest.fixture
def held(monkeypatch):
    """A copy waits until this is set."""
    gate = threading.Event()
    original = Capture.copy

    def copy(capture):
        assert gate.wait(60)
        original(capture)

    monkeypatch.setattr(Capture, "copy", copy)
    return gate


def test_beside_the_training_it_is_copied_before_anything_may_change(tmp_path, held):
    """`take` comes back at once, `copied` when the copy is there; numbers that are no tensors were taken down at once."""
    told = []
    weight, plain = torch.ones(1000), {"lr": 0.1}
    snapshots = Snapshotter(torch, Store(str(tmp_path)), lambda event, **fields: told.append((event, fields)))
    assert snapshots.take(1, 1, lambda: {"w": weight, "plain": plain}, {}, in_background=True)
    plain["lr"] = 0.2
    threading.Timer(0.05, held.set).start()
    snapshots.wait_until_copied()
    weight.zero_()
    snapshots.flush()
    found = Store(str(tmp_path)).read_newest(torch).state
    assert found["plain"] == {"lr": 0.1}
    assert found["w"].sum() == 1000
    assert [event for event, _ in told] == ["snapshot"]
    assert told[0][1]["stall"] >= 0.02  # what was waited for in `copied` is a part of it
    snapshots.wait_until_copied()  # nothing is to be waited for any more


def test_what_is_not_told_to_stand_still_is_copied_at_once(tmp_path, held):
    held.set()
    snapshots = Snapshotter(torch, Store(str(tmp_path)), lambda *_, **__: None)
    weight = torch.ones(1000)
    snapshots.take(1, 1, lambda: {"w": weight}, {})
    weight.zero_()
    snapshots.wait_until_copied()
    snapshots.flush()
    assert Store(str(tmp_path)).read_newest(torch).state["w"].sum() == 1000


def test_a_copy_beside_the_training_that_fails_is_told_and_not_written(tmp_path, monkeypatch):
    def fail(_capture):
        raise RuntimeError("the device is gone")

    told = []
    monkeypatch.setattr(Capture, "copy", fail)
    snapshots = Snapshotter(torch, Store(str(tmp_path)), lambda event, **fields: told.append((event, fields)))
    snapshots.take(1, 1, lambda: {"w": torch.ones(3)}, {}, in_background=True)
    snapshots.wait_until_copied()
    snapshots.flush()
    assert told == [("snapshot-failed", {"step": 1, "why": "the device is gone"})]
    assert not list(tmp_path.iterdir())


def test_where_the_system_gives_no_thread_nothing_waits(tmp_path, monkeypatch):
    """It is told, the training goes on, and the next one may do better."""

    def refuse(_thread):
        raise RuntimeError("can't start new thread")

    told = []
    snapshots = Snapshotter(torch, Store(str(tmp_path)), lambda event, **fields: told.append((event, fields)))
    with monkeypatch.context() as patched:
        patched.setattr(threading.Thread, "start", refuse)
        snapshots.preallocate(1 << 20)
        assert not snapshots.take(1, 1, lambda: {"w": torch.ones(3)}, {}, in_background=True)
        snapshots.wait_until_copied()
        snapshots.flush()
    assert told == [
        ("snapshot-failed", {"step": 1, "why": "the system could not start a thread to write the snapshot"})
    ]
    assert snapshots.take(2, 2, lambda: {"w": torch.ones(3)}, {}, in_background=True)
    snapshots.wait_until_copied()
    snapshots.flush()
    assert Store(str(tmp_path)).read_newest(torch).position == 2


def test_room_is_made_before_the_first_and_never_under_one(tmp_path):
    snapshots = Snapshotter(torch, Store(str(tmp_path)), lambda *_, **__: None)
    snapshots.preallocate(1 << 20)
    assert snapshots.take(1, 1, lambda: {"w": torch.ones(1000)}, {})
    block = snapshots._capture._block
    assert block.numel() >= 1 << 20
    snapshots.preallocate(1 << 21)
    snapshots.flush()
    assert snapshots.take(2, 2, lambda: {"w": torch.zeros(1000)}, {})
    snapshots.flush()
    assert snapshots._capture._block is block
    assert Store(str(tmp_path)).read_newest(torch).state["w"].sum() == 0


@pytest.mark.parametrize(("free", "made"), [(None, True), (1 << 30, True), (3 << 20, False)])
def test_room_that_the_training_may_need_itself_is_left_to_it(free, made):
    capture = Capture(torch, free_memory=lambda: free)
    capture.preallocate(1 << 20)
    assert (capture._block is not None) is made
    capture.take({"w": torch.ones(10)})
    assert capture.bytes == 64


def test_a_full_disk_leaves_the_last_good_one(tmp_path):
    """The training goes on, it is said once, and the snapshot before is still the one to go on from."""

    class Full(Files):
        def write(self, descriptor, data):
            raise OSError(errno.ENOSPC, "No space left on device")

    told = []
    first = Snapshotter(torch, Store(str(tmp_path)), lambda *_, **__: None)
    first.take(1, 1, lambda: {"n": 1}, {})
    first.flush()
    snapshots = Snapshotter(
        torch, Store(str(tmp_path), files=Full()), lambda event, **fields: told.append((event, fields))
    )
    for position in (2, 3):
        assert snapshots.take(position, position, lambda: {"n": 2}, {})
        snapshots.flush()
    assert told == [("snapshot-failed", {"step": 2, "why": "No space left on device"})]
    assert Store(str(tmp_path)).read_newest(torch).state["n"] == 1
    assert len(list(tmp_path.iterdir())) == 1


def test_one_is_taken_when_it_is_asked_for(tmp_path):
    wanted = tmp_path / "now"
    snapshots = Snapshotter(torch, Store(str(tmp_path / "s")), lambda *_, **__: None, request_file=str(wanted))
    assert not snapshots.is_due(1)
    wanted.touch()
    snapshots._next_poll = 0.0
    assert snapshots.is_due(1)
    assert snapshots.take(1, 1, lambda: {"n": 1}, {})
    snapshots.flush()
    snapshots._next_poll = 0.0
    assert not snapshots.is_due(2)


def test_interval_follows_cost_and_life():
    """Young's and Daly's rule, within what may be lost and what may be spent."""
    assert seconds_between(0.01, 3600.0) == pytest.approx((2 * 0.01 * 3600) ** 0.5)
    assert seconds_between(0.01, 36e5) == 120.0  # no more than two minutes of work
    assert seconds_between(0.01, 3600.0, write_seconds=2.0) == pytest.approx(
        (2 * 0.21 * 3600) ** 0.5
    )  # what is written counts too
    assert seconds_between(0.01, 1.0, write_seconds=2.0) == 10.0  # a disk is not written to all the time
    assert seconds_between(5.0, 3600.0, max_lost_seconds=30.0) == 30.0
    assert seconds_between(0.01, 3600.0, max_lost_seconds=0.0) == 0.0  # unless the user says so
    assert (expected_attempt_seconds(60.0, 5.0), expected_attempt_seconds(60.0, 500.0)) == (
        60.0,
        500.0,
    )  # what is old may grow older


def test_snapshots_keep_to_their_budget():
    """1% of the life so far, and a quarter of a second at its start."""
    assert seconds_until_affordable(0.02, spent=0.0, age=1.0) < 0
    assert seconds_until_affordable(0.02, spent=0.25, age=1.0) == pytest.approx(1.0)
    assert seconds_until_affordable(5.0, spent=0.0, age=100.0) == pytest.approx(375.0)


def test_a_run_that_keeps_dying_may_spend_what_its_lives_are_worth():
    """Ten seconds long, at 20 ms each: Young's and Daly's rule spends a third of a second, before 1% of anything is earned."""
    assert compute_loan(0.02, earlier_seconds=None) == 0.25
    assert compute_loan(0.02, earlier_seconds=10.0) == pytest.approx(10.0 / seconds_between(0.02, 10.0) * 0.02)
    assert compute_loan(0.0001, earlier_seconds=10.0) == 0.25


def costs_of(*seconds):
    costs = CostModel()
    for one in seconds:
        costs.start_snapshot()
        costs.add(one)
    return costs


def test_a_snapshot_costs_what_it_usually_does():
    """The median of the last five, in however many parts the training waited."""
    assert CostModel().typical == 0.02
    costs = costs_of(0.3, 0.01, 0.01)
    costs.add(0.02)
    assert costs.last == pytest.approx(0.03)
    assert costs.typical == pytest.approx(0.03)
    assert costs_of(0.3, 0.3, 0.01, 0.02, 0.03, 0.04, 0.05).typical == 0.03


def test_one_that_waited_for_a_busy_machine_does_not_keep_the_next_waiting():
    """0.3 s at 5 ms each are thirty seconds of a budget of one percent."""
    usual = [0.005] * 4
    assert costs_of(*usual, 0.3).counted_seconds == pytest.approx(0.32 - MAX_FORGIVEN_SECONDS)
    assert costs_of(*usual, 0.1).counted_seconds == pytest.approx(0.02 + 3 * 0.005)
    assert costs_of(0.1, *usual).counted_seconds == pytest.approx(
        0.02 + 3 * 0.005
    )  # the first, once others have shown what is usual
    assert costs_of(*usual, 0.1, *usual, *usual).counted_seconds == pytest.approx(0.06 + 3 * 0.005)  # and for good


def test_those_that_always_wait_are_counted():
    """What is forgiven has an end: one percent stays one percent."""
    often = [0.005, 0.005, 0.1] * 20
    assert costs_of(*often).counted_seconds == pytest.approx(sum(often) - MAX_FORGIVEN_SECONDS)
    assert costs_of(*[0.5] * 10).counted_seconds == pytest.approx(5.0)

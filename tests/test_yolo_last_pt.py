"""Which copies of last.pt there are: one for each snapshot that could be gone on from, and hardly any more."""

from __future__ import annotations

import errno
from types import SimpleNamespace

import pytest
import torch
from holdfast.probe.holdfast_probe.frameworks.ultralytics import last_pt
from holdfast.probe.holdfast_probe.frameworks.ultralytics.last_pt import LastPtCopies

from holdfast.probe.holdfast_probe.snapshots.store import Store, part_name


class Training:
    """As much of one as the copies see: saves and snapshots, in a folder."""

    def __init__(self, folder):
        self.folder = folder
        self.trainer = SimpleNamespace(last=folder / "last.pt", epoch=0)
        self.copies = LastPtCopies(Store(str(folder)))
        self.saved = None

    def save(self, epoch):
        self.copies.wait()
        torch.save({"epoch": epoch}, self.trainer.last)
        self.trainer.epoch = self.saved = epoch
        self.copies.start_copy(self.trainer)
        self.copies.wait()

    def snapshot(self, position, *, written=True):
        self.copies.add_snapshot(position, self.saved)
        if written:
            (self.folder / part_name(position, 0, 1)).write_bytes(b"")

    def lose(self, position):
        (self.folder / part_name(position, 0, 1)).unlink()

    def goes_on(self, position, epoch):
        """Another life, from that snapshot."""
        after = Training(self.folder)
        after.saved = epoch
        return after, after.copies.restore(torch, after.trainer, position, epoch)

    @property
    def kept(self):
        return [int(path.name[5:11]) for path in sorted(self.folder.glob("last-*.pt"))]

    @property
    def epoch_there(self):
        return torch.load(self.trainer.last, weights_only=False)["epoch"]


@pytest.fixture
def training(tmp_path):
    return Training(tmp_path)


def test_each_snapshot_has_its_own(training):
    """However many epochs are saved between them; those of no snapshot go."""
    training.snapshot(5)
    for epoch in range(10):
        training.save(epoch)
        if epoch in (1, 4):
            training.snapshot(10 * epoch)
    assert training.kept == [1, 4, 9]
    for position, epoch in ((40, 4), (10, 1)):
        after, why = training.goes_on(position, epoch)
        assert (why, after.epoch_there) == (None, epoch)


def test_it_goes_with_the_last_snapshot_that_needs_it(training):
    training.save(0)
    training.snapshot(10)
    training.snapshot(15)
    training.save(1)
    training.snapshot(20)
    training.lose(10)
    training.save(2)
    assert training.kept == [0, 1, 2]
    training.lose(15)
    training.save(3)
    assert training.kept == [1, 3]


def test_a_snapshot_on_its_way_to_the_disk_has_one_too(training):
    training.save(0)
    training.snapshot(10, written=False)
    training.save(1)
    assert training.kept == [0, 1]


def test_before_and_after_a_save_at_one_position(training):
    """A snapshot before the validation and one after it have the same name: it is not known which of them is on disk."""
    training.save(0)
    training.snapshot(12)
    training.save(1)
    training.snapshot(12)
    training.save(2)
    assert training.kept == [0, 1, 2]


def test_snapshots_of_an_earlier_life_keep_theirs(training):
    for epoch in range(3):
        training.save(epoch)
        training.snapshot(10 * epoch)
    after, _ = training.goes_on(10, 1)
    assert after.kept == [0, 1]  # what lies there of epoch 2 is not this life's
    training.lose(20)
    after.save(2)
    after.snapshot(21)
    after.save(3)
    assert after.kept == [0, 1, 2, 3]
    after.lose(0)
    after.save(4)
    assert after.kept == [1, 2, 4]


def test_a_full_disk_costs_no_copy(training, monkeypatch):
    """last.pt stays as it is, and what is known of the copies is as if it had not."""
    training.save(0)
    training.snapshot(10)
    training.save(1)

    def full(path, _chunks):
        raise OSError(errno.ENOSPC, "No space left on device", path)

    after = Training(training.folder)
    with monkeypatch.context() as patched:
        patched.setattr(last_pt, "replace_with_chunks", full)
        with pytest.raises(OSError, match="No space"):
            after.copies.restore(torch, after.trainer, 10, 0)
    assert after.epoch_there == 1
    after.save(1)
    after.save(2)
    assert after.kept == [0, 2]


def test_without_a_copy_the_file_itself_is_asked(training):
    """Killed while the copy was made it is still the one of then; a later or a torn one is not."""
    training.save(3)
    training.copies.clear()
    assert training.goes_on(40, 3)[1] is None
    assert "no copy saved after epoch 3" in training.goes_on(30, 2)[1]
    training.trainer.last.write_bytes(b"torn")
    assert training.goes_on(40, 3)[1] is not None
    assert training.goes_on(0, None)[1] is None

"""The trace of losses: what is done again is compared with the first time, and no disk can make it end a training."""

from __future__ import annotations

import errno
import os

import pytest

from holdfast.probe.holdfast_probe.snapshots.fs import Files
from holdfast.probe.holdfast_probe.snapshots.loss_trace import NAME, LossTrace


@pytest.fixture
def told():
    return []


def lived(folder, told, losses, *, after=None):
    """A life that begins after this batch, and has these losses."""
    trace = LossTrace(str(folder), lambda event, **fields: told.append((event, fields)))
    if after is not None:
        trace.resume_from(after)
    for number, loss in enumerate(losses, (after or 0) + 1):
        trace.add(number, number, loss)


def test_what_is_done_again_is_compared(tmp_path, told):
    """Told once, when it has come to where the life before had died."""
    lived(tmp_path, told, [5.0, 4.0, 3.0, float("nan")])
    lived(tmp_path, told, [4.0, 3.0, float("nan"), 1.0, 0.5], after=1)
    assert told == [("replayed", {"step": 4, "compared": 3, "differs_at": None})]


def test_the_first_that_differs_is_named(tmp_path, told):
    """By its last bit."""
    lived(tmp_path, told, [5.0, 4.0, 3.0, 2.0])
    lived(tmp_path, told, [4.0, 3.0000000000000004, 2.0], after=1)
    assert told == [("replayed", {"step": 3, "compared": 2, "differs_at": 3})]


def test_on_a_full_disk_there_is_none(tmp_path, told, monkeypatch):
    """Room is taken at once: a mapped page that cannot be written later would end the training with SIGBUS."""

    def half(files, descriptor, data):
        os.write(descriptor, bytes(data)[:4096])
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(Files, "write", half)
    lived(tmp_path, told, [5.0, 4.0])
    assert (tmp_path / NAME).stat().st_size == 0
    lived(tmp_path / "no folder" / "\0", told, [5.0])
    monkeypatch.undo()
    lived(tmp_path, told, [4.0], after=1)
    assert (tmp_path / NAME).stat().st_blocks * 512 >= (tmp_path / NAME).stat().st_size > 0
    assert told == []

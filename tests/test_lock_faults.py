"""Disks and file systems on which a run cannot be locked or recorded: a sentence, and what to do."""

from __future__ import annotations

import errno
import fcntl
import os
from pathlib import Path

import pytest

from holdfast.schema.errors import FolderNotWritable, RunIsLive
from holdfast.storage import folder, lock
from holdfast.storage.journal import JournalWriter
from holdfast.storage.lock import RunLock, is_live, read_holder


@pytest.fixture
def run(tmp_path):
    return folder.create(["python"], root=tmp_path)


def open_descriptors():
    return sum(1 for _ in Path("/dev/fd").iterdir())


def failing(number):
    def fail(*_, **__):
        raise OSError(number, os.strerror(number))

    return fail


@pytest.mark.parametrize("call", ["pwrite", "ftruncate", "open"])
def test_lock_on_a_full_disk(run, monkeypatch, call):
    """Wherever the disk is full on the way: a sentence that says to free disk space, and no descriptor left open."""
    before = open_descriptors()
    monkeypatch.setattr(os, call, failing(errno.ENOSPC))
    with (
        pytest.raises(FolderNotWritable, match=r"cannot be locked: No space left.*\n.*free some disk space"),
        RunLock(run),
    ):
        pass
    monkeypatch.undo()
    assert open_descriptors() == before


def test_disk_that_is_full_at_the_end(run, monkeypatch):
    """The run is over: that the lock's last word could not be written is no error."""
    with RunLock(run):
        monkeypatch.setattr(os, "pwrite", failing(errno.ENOSPC))
    monkeypatch.undo()
    assert not is_live(run)


@pytest.mark.parametrize("number", [errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP, errno.EINVAL])
def test_file_system_without_locks(run, monkeypatch, number):
    """`status` takes the run for not live; a supervisor says that it cannot be locked here."""
    run.lock.write_text("123\n")
    monkeypatch.setattr(fcntl, "flock", failing(number))
    assert not is_live(run)
    assert read_holder(run) is None
    with pytest.raises(FolderNotWritable, match=r"cannot be locked.*\n.*local disk"), RunLock(run):
        pass


@pytest.mark.parametrize("kind", ["fifo", "folder", "link", "loop"])
def test_lock_that_is_no_file(run, tmp_path, kind):
    """A FIFO, a folder or a link under its name: nothing waits, nothing else is written to."""
    mine = tmp_path / "mine"
    mine.write_text("precious")
    if kind == "fifo":
        os.mkfifo(run.lock)
    elif kind == "folder":
        run.lock.mkdir()
    else:
        run.lock.symlink_to(mine if kind == "link" else run.lock)
    assert not is_live(run)
    assert read_holder(run) is None
    with pytest.raises(FolderNotWritable, match="cannot be locked"), RunLock(run):
        pass
    assert mine.read_text() == "precious"


@pytest.mark.parametrize("said", ["", "²", "-5", "9" * 32, "1e5", "\x1b[31m1", "\x00"])
def test_holder_that_is_no_number(run, monkeypatch, said):
    """Whatever the lock's file says, it is a process number or unknown."""
    run.lock.write_text(f"{said}\n")
    monkeypatch.setattr(lock, "_acquire", lambda _: False)
    monkeypatch.setattr(lock, "_is_locked", lambda _: True)
    assert read_holder(run) is None
    with pytest.raises(RunIsLive, match="by process unknown"), RunLock(run):
        pass


@pytest.mark.parametrize("kind", ["fifo", "folder", "link"])
def test_journal_that_is_no_file(run, tmp_path, kind):
    """It is not written to where it leads; a sentence says what is the matter."""
    mine = tmp_path / "mine"
    mine.write_text("precious")
    if kind == "fifo":
        os.mkfifo(run.journal)
    elif kind == "folder":
        run.journal.mkdir()
    else:
        run.journal.symlink_to(mine)
    with pytest.raises(FolderNotWritable, match="journal"):
        JournalWriter(run.journal)
    assert mine.read_text() == "precious"


def test_reserve_does_not_follow_a_link(run, tmp_path):
    """A link planted as `reserve` leads nowhere: what it names is not overwritten."""
    mine = tmp_path / "mine"
    mine.write_text("precious")
    (run.path / "reserve").symlink_to(mine)
    JournalWriter(run.journal).close()
    assert mine.read_text() == "precious"

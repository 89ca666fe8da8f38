"""Folders of snapshots that others can write to, or own: planted links, foreign files, and names that are not ours."""

from __future__ import annotations

import json
import os
import stat

import pytest
import torch

from holdfast.probe.holdfast_probe.guard import guard
from holdfast.probe.holdfast_probe.snapshots import folder_lock, fs, snapshot_file
from holdfast.probe.holdfast_probe.snapshots.folder_lock import FolderLock, ForeignFolder
from holdfast.probe.holdfast_probe.snapshots.fs import Files, replace_content, write_atomically
from holdfast.probe.holdfast_probe.snapshots.loss_trace import NAME as TRACE
from holdfast.probe.holdfast_probe.snapshots.loss_trace import LossTrace
from holdfast.probe.holdfast_probe.snapshots.store import Store, part_name
from holdfast.supervisor.discard_snapshots import discard_corrupt

STRANGER = 54321


@pytest.fixture
def precious(tmp_path):
    """A file of the victim's, elsewhere, that a planted link names."""
    path = tmp_path / "precious"
    path.write_text("precious")
    yield path
    assert path.read_text() == "precious"


@pytest.fixture
def shared(tmp_path):
    path = tmp_path / "shared"
    path.mkdir()
    path.chmod(0o777)
    return path


def wrote(store, position):
    header = json.dumps({"position": position, "step": position, "tree": ["dict", []], "tensors": []})
    return store.write(position, header, memoryview(b""))


def given_away(monkeypatch, *paths):
    """These belong to another user from now on: really so as root, and as far as we can see elsewhere."""
    monkeypatch.delenv("SUDO_UID", raising=False)
    if os.geteuid() == 0:
        for path in paths:
            os.chown(path, STRANGER, STRANGER, follow_symlinks=False)
        return
    numbers = {os.lstat(path).st_ino for path in paths}

    def seen(call):
        def stated(place, **options):
            status = call(place, **options)
            if status.st_ino not in numbers:
                return status
            return os.stat_result([STRANGER if n == 4 else value for n, value in enumerate(status[:10])])

        return stated

    for name in ("stat", "lstat", "fstat"):
        monkeypatch.setattr(fs.os, name, seen(getattr(os, name)))


# --- planted links ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("hard", [False, True])
def test_trace_does_not_follow_a_planted_link(shared, precious, hard):
    """`trace` is a link to a file of the victim's: it keeps its content, and the training goes on without a trace."""
    (os.link if hard else os.symlink)(precious, shared / TRACE)
    trace = LossTrace(str(shared), lambda *_, **__: None)
    trace.clear()
    trace.add(1, 1, 0.5)


def test_snapshot_does_not_write_through_planted_temporary_names(shared, precious):
    """Whatever links lie in the folder, under names that can be foreseen: the snapshot is whole, and nothing else changes."""
    name = part_name(7, 0, 1)
    for planted in (name, f"{name}.{os.getpid()}.tmp", f"{name}.tmp"):
        (shared / planted).symlink_to(precious)
    store = Store(str(shared))
    assert wrote(store, 7) == str(shared / name)
    assert not (shared / name).is_symlink()
    assert store.read_newest(torch).position == 7


def test_temporary_names_cannot_be_foreseen(shared, precious, monkeypatch):
    """Also where the name is met all the same: a file that is there is never opened for writing."""
    monkeypatch.setattr(os, "urandom", bytes)
    (shared / os.path.basename(fs.temporary_name(str(shared)))).symlink_to(precious)  # noqa: PTH119
    with pytest.raises(FileExistsError):
        write_atomically(Files(), str(shared / "x"), [b"1"])
    with pytest.raises(FileExistsError):
        replace_content(str(shared / "x"), b"1")
    monkeypatch.undo()
    names = {fs.temporary_name(str(shared)) for _ in range(100)}
    assert len(names) == 100


def test_claim_does_not_follow_a_planted_link(shared, precious):
    """The lock's file is a link: it is neither locked nor removed, and the training goes on."""
    (shared / (folder_lock.NAME % 0)).symlink_to(precious)
    held = FolderLock(str(shared), 0)
    held.acquire()
    held.release(finished=True)


@pytest.mark.parametrize("kind", ["fifo", "folder", "loop", "zero"])
def test_nothing_waits_for_what_is_no_file(shared, kind):
    """A FIFO, a folder, a loop of links or a device under each of the names: passed over, told as torn where it counts."""
    names = (part_name(5, 0, 1), "agreed", TRACE, folder_lock.NAME % 0)
    for name in names:
        path = shared / name
        if kind == "fifo":
            os.mkfifo(path)
        elif kind == "folder":
            path.mkdir()
        else:
            path.symlink_to("/dev/zero" if kind == "zero" else path)
    torn = []
    store = Store(str(shared))
    assert store.read_newest(torch, lambda *why: torn.append(why)) is None
    assert len(torn) == 1
    assert store.read_announced() == -1
    LossTrace(str(shared), lambda *_, **__: None)
    FolderLock(str(shared), 0).acquire()
    folder_lock._active.clear()


def test_part_of_another_rank_that_is_a_fifo(shared):
    """Every rank reads every part: one that never answers is torn, not waited for."""
    stores = [Store(str(shared), rank, 2) for rank in (0, 1)]
    for store in stores:
        wrote(store, 3)
    assert stores[0].commit()
    (shared / part_name(3, 1, 2)).unlink()
    os.mkfifo(shared / part_name(3, 1, 2))
    assert stores[0].read_newest(torch) is None


def test_commit_that_is_nested_deeply(shared):
    """What holds the parts together is hostile JSON: torn."""
    stores = [Store(str(shared), rank, 2) for rank in (0, 1)]
    for store in stores:
        wrote(store, 3)
    assert stores[0].commit()
    for text in ("[" * 200_000, '{"parts": 7}', '{"parts": [1]}'):
        (shared / "000000000003.of-2.commit").write_text(text)
        assert stores[0].read_newest(torch) is None


# --- other owners -----------------------------------------------------------------------------------------------------


def test_folder_of_another_user_is_refused(shared, monkeypatch):
    """Before anything is read or written there; the words say whose it is and what to do."""
    monkeypatch.setattr(fs, "_is_mapped_user", lambda *_: False)
    given_away(monkeypatch, shared)
    with pytest.raises(ForeignFolder, match=rf"another user \(uid {STRANGER}\).*folder="):
        guard(model=torch.nn.Linear(1, 1), folder=str(shared))
    monkeypatch.undo()
    assert list(shared.iterdir()) == []


@pytest.mark.parametrize("above", [".holdfast", ".holdfast/guard"])
def test_folders_above_that_guard_would_make_count_too(tmp_path, monkeypatch, above):
    """`.holdfast` of another user: guard's own folder is not made in it."""
    monkeypatch.setattr(fs, "_is_mapped_user", lambda *_: False)
    (tmp_path / ".holdfast" / "guard").mkdir(parents=True)
    monkeypatch.chdir(tmp_path)
    given_away(monkeypatch, tmp_path / above)
    with pytest.raises(ForeignFolder):
        guard(model=torch.nn.Linear(1, 1))
    monkeypatch.undo()
    assert list((tmp_path / ".holdfast" / "guard").iterdir()) == []


def test_link_of_another_user_is_refused(tmp_path, monkeypatch):
    """The folder's name is a link that somebody planted: it is not gone through."""
    monkeypatch.setattr(fs, "_is_mapped_user", lambda *_: False)
    target, link = tmp_path / "target", tmp_path / "link"
    target.mkdir()
    link.symlink_to(target)
    given_away(monkeypatch, link)
    with pytest.raises(ForeignFolder):
        FolderLock(str(link), 0)


def test_snapshot_of_another_user_is_passed_over(shared, monkeypatch):
    """In a folder of one's own that others can write to: the newest is theirs, so the one before it is gone on from."""
    monkeypatch.setattr(fs, "_is_mapped_user", lambda *_: False)
    store = Store(str(shared))
    wrote(store, 1)
    given_away(monkeypatch, wrote(store, 2))
    torn = []
    assert store.read_newest(torch, lambda _, *told: torn.append(told)).position == 1
    assert torn == [(f"it belongs to another user (uid {STRANGER})", True)]


def test_snapshots_of_another_user_are_not_removed(shared, monkeypatch):
    """Neither by a new snapshot, for which they do not count among the newest, nor at the end, nor when ranks begin anew."""
    monkeypatch.setattr(fs, "_is_mapped_user", lambda *_: False)
    store = Store(str(shared))
    theirs = [shared / part_name(position, 0, 1) for position in (5, 6, 7, 90)]
    theirs += [shared / ".holdfast-4194304-0123456789abcdef.tmp", shared / "agreed", shared / TRACE]
    theirs += [shared / "000000000099.of-2.commit"]
    for path in theirs:
        path.write_text("theirs")
    given_away(monkeypatch, *theirs)
    for position in (3, 4, 8):
        wrote(store, position)
    assert store.positions(own_only=True) == [8, 4, 3]
    ranks = Store(str(shared), 0, 2)
    ranks.last_position = 1
    ranks._discard_incomplete()
    store.clear()
    ranks.clear()
    assert sorted(shared.iterdir()) == sorted(theirs)


def test_guard_says_that_it_passed_over_what_another_user_put_there(shared, monkeypatch, capsys):
    """Not that it is torn: it may be whole."""
    monkeypatch.setattr(fs, "_is_mapped_user", lambda *_: False)
    given_away(monkeypatch, wrote(Store(str(shared)), 2))
    with guard(model=torch.nn.Linear(1, 1), folder=str(shared)):
        pass
    said = capsys.readouterr().err
    assert "a snapshot was skipped" in said
    assert f"belongs to another user (uid {STRANGER})" in said
    assert "corrupt" not in said
    assert (shared / part_name(2, 0, 1)).exists()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a file to another user")
def test_supervisor_does_not_remove_spoiled_files_of_another_user(shared):
    """In a folder that guard was given, also what lies beyond the step at which the training was spoiled stays where it is theirs."""
    theirs, ours = shared / part_name(9, 0, 1), shared / part_name(8, 0, 1)
    for path in (theirs, ours):
        path.write_text("x")
    os.chown(theirs, STRANGER, STRANGER)
    discard_corrupt(shared, {}, 1)
    assert list(shared.iterdir()) == [theirs]


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can own nothing of what it makes")
def test_file_system_that_gives_our_files_to_another(shared, monkeypatch):
    """Root on NFS is nobody: a folder whose owner is who we become there is ours."""
    given_away(monkeypatch, shared)
    real = os.fstat

    def squashed(descriptor):
        status = real(descriptor)
        return os.stat_result([STRANGER if n == 4 else value for n, value in enumerate(status[:10])])

    monkeypatch.setattr(fs.os, "fstat", squashed)
    FolderLock(str(shared), 0)
    assert list(shared.iterdir()) == []


# --- names that are not ours ------------------------------------------------------------------------------------------

FOREIGN = [
    "notes.123.tmp",
    "a.99999999999999999999.tmp",
    "000000000009.rank-0-of-1.snapshot.my-backup",
    "000000000009.rank-0-of-1.snapshot.4194304.tmp",
    "000000000009.rank-0-of-1.snapshot\n",
    "000000000009.of-1.commit~",
    ".holdfast-99999999999999999999-0123456789abcdef.tmp",
    ".holdfast-1-xyz.tmp",
    "x.holdfast-4194304-0123456789abcdef.tmp",
    "٠٠٠٠٠٠٠٠٠٠٠٩.rank-0-of-1.snapshot",
    "agreed.txt",
    "trace.bak",
]


def test_foreign_files_stay(shared):
    """Whatever the user keeps in that folder: neither a snapshot nor the training's end removes it, and none of it raises."""
    for name in FOREIGN:
        (shared / name).write_text("mine")
    store = Store(str(shared), keep=1)
    for position in (10, 11):
        wrote(store, position)
    store.clear()
    assert sorted(path.name for path in shared.iterdir()) == sorted(FOREIGN)
    assert all(path.read_text() == "mine" for path in shared.iterdir())


@pytest.mark.parametrize(("pid", "stays"), [(os.getppid(), True), (4194304, False), (9999999999, False), (0, False)])
def test_only_what_the_dead_left_is_removed(shared, pid, stays):
    """Half-written, by a process that is gone or that no process can be: removed. By one that lives: left, also at the end."""
    left = shared / f".holdfast-{pid}-0123456789abcdef.tmp"
    left.touch()
    store = Store(str(shared))
    wrote(store, 1)
    assert left.exists() == stays
    store.clear()
    assert left.exists() == stays


# --- modes ------------------------------------------------------------------------------------------------------------


def test_folders_that_guard_makes_with_umask_0(tmp_path, monkeypatch):
    """`.holdfast` and `guard` are nobody else's to write to, and the folder of the snapshots is for us alone."""
    monkeypatch.chdir(tmp_path)
    before = os.umask(0)
    try:
        with guard(model=torch.nn.Linear(1, 1), max_lost_work=0) as run:
            run.snapshot()
            folder = run._store.folder
    finally:
        os.umask(before)
    modes = [stat.S_IMODE(os.stat(place).st_mode) for place in (".holdfast", ".holdfast/guard", folder)]  # noqa: PTH116
    assert modes == [0o755, 0o755, 0o700]


def test_content_of_the_users_own_files_is_replaced_with_their_mode(tmp_path):
    """A table that is written anew stays as readable as any file that the user makes."""
    path = tmp_path / "results.csv"
    before = os.umask(0o022)
    try:
        replace_content(path, b"1\n")
    finally:
        os.umask(before)
    assert (path.read_bytes(), stat.S_IMODE(path.stat().st_mode)) == (b"1\n", 0o644)
    assert [entry.name for entry in tmp_path.iterdir()] == ["results.csv"]


def test_a_snapshot_with_a_second_name_is_read(shared):
    """A backup by hard links does not make it useless."""
    store = Store(str(shared))
    path = wrote(store, 4)
    os.link(path, shared / "backup")
    assert store.read_newest(torch).position == 4
    assert snapshot_file.compute_digest(path) == store.read_newest(torch).digest

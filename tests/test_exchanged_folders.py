"""Run folders that are exchanged or linked while they are used: nothing is run from, written into or removed from another."""

from __future__ import annotations

import json
import os
import sys

import pytest
from running import holdfast_run
from strangers import NAME, Stranger
from test_importers_runs import left_behind, typed

from holdfast.schema.errors import FolderGone, FolderNotWritable, UntrustedRun
from holdfast.storage import folder
from holdfast.storage.disk_reserve import Reserve
from holdfast.storage.folder import RunFolder
from holdfast.storage.journal import JournalWriter
from holdfast.storage.lock import RunLock
from holdfast.storage.owners import find_foreign_parent, refuse_foreign
from holdfast.storage.safe_files import HardLinkedFile, open_handle


@pytest.fixture
def stranger(monkeypatch):
    return Stranger(monkeypatch)


@pytest.mark.parametrize("above", [".holdfast", ".holdfast/runs"])
@pytest.mark.parametrize("named", ["theirs", "theirs-1", ".holdfast/runs/theirs-1"])
def test_resume_by_name_refuses_what_lies_below_a_strangers_folder(
    tmp_path, monkeypatch, capsys, stranger, above, named
):
    """The run is one's own, but who owns `.holdfast` or `runs` can put another in its place."""
    left_behind(tmp_path)
    stranger.owns(tmp_path / above)
    code, _, err = typed(monkeypatch, capsys, tmp_path, "resume", named)
    assert (code, (tmp_path / "was-run").exists()) == (2, False), err
    assert f"{above} belongs to {NAME}" in err
    assert "cp -r" in err


@pytest.mark.parametrize("sticky", [False, True])
def test_the_folder_around_a_run_elsewhere(tmp_path, stranger, sticky):
    """--dir inside another user's folder is neither made nor resumed; a sticky one, as /tmp, protects what is ours."""
    around = tmp_path / "around"
    around.mkdir()
    run = folder.create(["python"], root=tmp_path, folder=around / "run")
    if sticky:
        around.chmod(0o1777)
    stranger.owns(around)
    if sticky:
        refuse_foreign(run)
        folder.create(["python"], root=tmp_path, folder=around / "another")
        return
    with pytest.raises(UntrustedRun, match=f"around belongs to {NAME}"):
        refuse_foreign(run)
    with pytest.raises(FolderNotWritable, match=f"around belongs to {NAME}"):
        folder.create(["python"], root=tmp_path, folder=around / "another")
    assert not (around / "another").exists()


def test_the_working_folder_may_be_anybodys(tmp_path, stranger, monkeypatch):
    """A project of a colleague, or one mounted into a container: what is run there is in its owner's hand anyway."""
    run = left_behind(tmp_path)
    stranger.owns(tmp_path)
    assert find_foreign_parent(run.path) is None
    refuse_foreign(run)
    assert find_foreign_parent(tmp_path / "out").path == tmp_path
    monkeypatch.chdir(tmp_path)
    assert find_foreign_parent(tmp_path / "out") is None


def test_stages_and_links_count_with_what_lies_above_them(tmp_path, stranger):
    """A stage is resumed only where the folders above its run are trusted, and a link only where both ends are."""
    run = left_behind(tmp_path)
    stage = folder.make_stage(run, 1, "small")
    far = tmp_path / "far"
    far.mkdir()
    (far / "run").mkdir()
    link = run.path.with_name("linked-1")
    link.symlink_to(far / "run")
    assert find_foreign_parent(stage.path) is None
    assert find_foreign_parent(link) is None
    stranger.owns(tmp_path / ".holdfast")
    stranger.owns(far)
    assert find_foreign_parent(stage.path).path == tmp_path / ".holdfast"
    assert find_foreign_parent(far / "run").path == far
    assert find_foreign_parent(link) is not None


def test_lock_is_refused_where_the_folder_was_exchanged_since_it_was_found(tmp_path):
    """Looked at, exchanged, locked: the lock notices that it is another folder, and lets go of it."""
    run = left_behind(tmp_path)
    other = left_behind(tmp_path, "other")
    run.path.rename(tmp_path / "moved")
    other.path.rename(run.path)
    with pytest.raises(FolderGone, match="removed or replaced"), RunLock(run):
        pass
    with RunLock(RunFolder(run.path)):
        pass


def test_lock_looks_at_owners_again(tmp_path, stranger):
    """A folder whose owner changed between the first look and the lock is refused."""
    run = left_behind(tmp_path)
    refuse_foreign(run)
    stranger.owns(run.path.parent)
    with pytest.raises(UntrustedRun), RunLock(run):
        pass


REPLACES = """
import os, sys
os.rename('run', 'moved')
os.{how}
sys.exit({code})
"""


@pytest.mark.parametrize(("code", "as_json"), [(0, False), (7, False), (7, True)])
@pytest.mark.parametrize("how", ["symlink('victim', 'run')", "rename('victim', 'run')"])
def test_a_run_folder_that_is_replaced_while_the_run_lives(tmp_path, how, code, as_json):
    """A link to another folder, or another folder: nothing in it is written or removed, and the verdict is told."""
    victim = tmp_path / "victim"
    (victim / "attempts" / "2").mkdir(parents=True)
    for name in ("summary.json", "reserve", "lock", "journal.jsonl", "on-event.log", "attempts/2/stdout.log"):
        (victim / name).write_text("precious\n")
    words = [sys.executable, "-c", REPLACES.format(how=how, code=code)]
    options = ["--backoff", "0", "--on-event", "/bin/echo", *(["--json"] if as_json else [])]
    ran = holdfast_run(tmp_path, *words, options=options)
    assert ran.code == (0 if code == 0 else 4), ran.stderr
    assert "Traceback" not in ran.stderr
    now = tmp_path / "run"
    left = {str(path.relative_to(now)): path.read_text() for path in now.rglob("*") if path.is_file()}
    assert left == dict.fromkeys(
        ["summary.json", "reserve", "lock", "journal.jsonl", "on-event.log", "attempts/2/stdout.log"], "precious\n"
    )
    if as_json:
        assert json.loads(ran.stdout.splitlines()[-1])["verdict"] == "failed"
    else:
        assert "was removed or replaced during the run" in ran.stderr


def test_a_stage_is_not_made_in_another_folder(tmp_path):
    """Between two stages the run folder became a link: the next stage is not made where that leads."""
    run = left_behind(tmp_path)
    victim = tmp_path / "victim"
    victim.mkdir()
    run.path.rename(tmp_path / "moved")
    run.path.symlink_to(victim)
    with pytest.raises(FolderGone):
        folder.make_stage(run, 2, "large")
    assert list(victim.iterdir()) == []


def test_a_folder_that_is_moved_and_linked_to_is_the_same(tmp_path):
    """Moved to a larger disk with a link left behind: that is the run's folder still."""
    run = left_behind(tmp_path)
    run.path.rename(tmp_path / "moved")
    assert not run.exists_unchanged()
    run.path.symlink_to(tmp_path / "moved")
    assert run.exists_unchanged()


def test_room_is_given_back_only_by_removing_what_was_made(tmp_path):
    """Another file under that name at the end stays; and one that was there before is not written over."""
    precious = tmp_path / "precious"
    precious.write_text("precious")
    os.link(precious, tmp_path / "reserve")
    reserve = Reserve(tmp_path / "reserve")
    assert precious.read_text() == "precious"
    (tmp_path / "reserve").unlink()
    (tmp_path / "reserve").write_text("another's")
    reserve.release()
    assert (tmp_path / "reserve").read_text() == "another's"


@pytest.mark.parametrize("name", ["lock", "journal.jsonl"])
def test_resume_does_not_write_into_a_file_with_another_name(tmp_path, monkeypatch, capsys, name):
    """A hard link to a file elsewhere: it stays as it is, and the sentence names it."""
    run = left_behind(tmp_path)
    elsewhere = tmp_path / "elsewhere"
    (run.path / name).touch()
    os.link(run.path / name, elsewhere)
    before = elsewhere.read_bytes()
    code, _, err = typed(monkeypatch, capsys, tmp_path, "resume", run.name)
    assert (code, elsewhere.read_bytes(), (tmp_path / "was-run").exists()) == (2, before, False)
    assert f"{name} is a hard link to a file elsewhere" in err
    assert "cp -r" in err


@pytest.mark.parametrize("flags", [os.O_WRONLY | os.O_TRUNC, os.O_RDWR, os.O_WRONLY | os.O_APPEND])
def test_open_handle_for_writing_wants_one_name(tmp_path, flags):
    """Whatever it is opened for, also to be cut short: refused before anything of it is changed. Reading is no matter."""
    (tmp_path / "a").write_text("precious")
    os.link(tmp_path / "a", tmp_path / "b")
    with pytest.raises(HardLinkedFile, match="b is a hard link"):
        open_handle(tmp_path / "b", flags)
    assert (tmp_path / "a").read_text() == "precious"
    os.close(open_handle(tmp_path / "b", os.O_RDONLY))
    (tmp_path / "b").unlink()
    os.close(open_handle(tmp_path / "a", flags))
    assert (tmp_path / "a").read_text() == ("" if flags & os.O_TRUNC else "precious")


def test_journal_with_another_name_is_told(tmp_path):
    """`JournalWriter` refuses it with what to do."""
    (tmp_path / "journal.jsonl").touch()
    os.link(tmp_path / "journal.jsonl", tmp_path / "b")
    with pytest.raises(FolderNotWritable, match="is a hard link to a file elsewhere"):
        JournalWriter(tmp_path / "journal.jsonl")

"""Runs that another user left in the working folder: passed over, told of, and never carried out."""

from __future__ import annotations

import os
import stat
import sys

import pytest
from strangers import NAME, Stranger

from holdfast import __main__ as way_in
from holdfast.schema import events
from holdfast.schema.errors import FolderNotWritable, UnknownRun, UntrustedRun
from holdfast.schema.plan import Plan
from holdfast.storage import folder
from holdfast.storage.folder import RUNS, RunFolder
from holdfast.storage.journal import JournalWriter
from holdfast.storage.owners import refuse_foreign
from holdfast.storage.plan_copy import write_plan
from holdfast.storage.safe_files import trusted_users
from holdfast.supervisor.find_resumable import newest_resumable


@pytest.fixture
def stranger(monkeypatch):
    return Stranger(monkeypatch)


def left_behind(root, name="theirs", at=100.0) -> RunFolder:
    """A run whose supervisor is gone, and whose command would leave a file behind."""
    run = folder.create(["python"], root=root, name=name)
    write_plan(run, Plan(cwd=str(root), command=[sys.executable, "-c", "open('was-run', 'w')"]))
    os.utime(run.plan, (at, at))
    started = events.RunStarted(
        at=1.0, schema=1, run=run.name, command=["x"], cwd=str(root), holdfast="0", platform="", python="", supervisor=1
    )
    journal = JournalWriter(run.journal)
    journal.append(started)
    journal.close()
    return run


def typed(monkeypatch, capsys, root, *words):
    """(status, stdout, stderr) of a command typed in this folder."""
    monkeypatch.chdir(root)
    monkeypatch.setattr(sys, "argv", ["holdfast", *words])
    with pytest.raises(SystemExit) as left:
        way_in.main()
    said = capsys.readouterr()
    return left.value.code, said.out, said.err


PARTS = ["", "plan.toml", "journal.jsonl", "attempts"]


@pytest.mark.parametrize("part", PARTS)
def test_resume_passes_over_the_run_of_a_stranger(tmp_path, monkeypatch, capsys, stranger, part):
    """`holdfast resume` in a folder where somebody else left a run: it is not carried out, and one line says whose it is."""
    run = left_behind(tmp_path)
    stranger.owns(run.path / part)
    code, _, err = typed(monkeypatch, capsys, tmp_path, "resume")
    assert code == 2
    assert not (tmp_path / "was-run").exists()
    assert err.count("skipped") == 1
    assert NAME in err
    assert "There is no run under" in err


@pytest.mark.parametrize("above", [".holdfast", ".holdfast/runs"])
def test_folders_above_the_runs_count_too(tmp_path, monkeypatch, capsys, stranger, above):
    """Whoever owns `.holdfast` or `runs` decides what lies in it: nothing there is acted on, and no run is made there."""
    left_behind(tmp_path)
    stranger.owns(tmp_path / above)
    code, _, err = typed(monkeypatch, capsys, tmp_path, "resume")
    assert (code, NAME in err, (tmp_path / "was-run").exists()) == (2, True, False)
    with pytest.raises(FolderNotWritable, match=f"belongs to {NAME}.*\n.*--dir"):
        folder.create(["python"], root=tmp_path)


def test_own_runs_are_found_behind_those_of_a_stranger(tmp_path, stranger):
    """The newest is a stranger's: the one after it is taken, and the line is told once."""
    mine = left_behind(tmp_path, "mine", at=1.0)
    for number in range(3):
        stranger.owns(left_behind(tmp_path, f"theirs{number}", at=100.0).path)
    lines = []
    assert newest_resumable(tmp_path, lines.append).name == mine.name
    assert folder.find(None, root=tmp_path, notify=lines.append).name == mine.name
    assert len(lines) == 2
    assert all("3 runs" in line and NAME in line for line in lines)


@pytest.mark.parametrize("by_path", [False, True])
def test_a_named_run_of_a_stranger_is_refused_with_the_reason(tmp_path, monkeypatch, capsys, stranger, by_path):
    """Named by name or by path: `resume` says whose it is, why that matters and what to do."""
    run = left_behind(tmp_path)
    stranger.owns(run.plan)
    code, _, err = typed(monkeypatch, capsys, tmp_path, "resume", str(run.path) if by_path else run.name)
    assert code == 2
    assert not (tmp_path / "was-run").exists()
    assert f"plan.toml belongs to {NAME}" in err
    assert "with your permissions" in err
    assert "cp -r" in err
    assert "chown" in err


def test_a_stage_of_a_stranger_is_refused(tmp_path, stranger):
    """A run of one's own into which somebody put a stage is not resumed either."""
    run = left_behind(tmp_path)
    stage = folder.make_stage(run, 1, "small")
    stage.plan.write_text("")
    refuse_foreign(run, folder.stage_folders(run))
    stranger.owns(stage.plan)
    with pytest.raises(UntrustedRun, match=r"stages/1-small/plan\.toml"):
        refuse_foreign(run, folder.stage_folders(run))


def test_reading_a_named_run_of_a_stranger_is_allowed(tmp_path, stranger):
    """`status` and `report` only read: they find it by name and by path, but not by themselves."""
    run = left_behind(tmp_path)
    stranger.owns(run.path)
    assert folder.find(run.name, root=tmp_path).path == run.path
    assert folder.find("theirs", root=tmp_path).path == run.path
    assert folder.find(str(run.path), root=tmp_path).path == run.path
    lines = []
    with pytest.raises(UnknownRun, match="no run of yours"):
        folder.find(None, root=tmp_path, notify=lines.append)
    assert NAME in lines[0]


def test_dir_of_a_stranger_is_not_written_to(tmp_path, stranger):
    """--dir with an empty folder of somebody else: refused before anything is written into it."""
    theirs = tmp_path / "theirs"
    theirs.mkdir()
    stranger.owns(theirs)
    with pytest.raises(FolderNotWritable, match="belongs to"):
        folder.create(["python"], root=tmp_path, folder=theirs)
    assert list(theirs.iterdir()) == []


def test_link_of_a_stranger_is_not_followed(tmp_path, stranger):
    """`.holdfast` is a link that somebody planted: nothing is written where it leads."""
    target = tmp_path / "target"
    target.mkdir()
    (tmp_path / ".holdfast").symlink_to(target)
    stranger.owns(tmp_path / ".holdfast")
    with pytest.raises(FolderNotWritable):
        folder.create(["python"], root=tmp_path)
    assert list(target.iterdir()) == []


@pytest.mark.parametrize("umask", [0, 0o022, 0o077])
def test_modes_whatever_the_umask(tmp_path, umask):
    """`.holdfast` and `runs` are never open to others for writing, and a run is never open to others at all."""
    before = os.umask(umask)
    try:
        run = folder.create(["python"], root=tmp_path)
        stage = folder.make_stage(run, 1, "small")
        far = folder.create(["python"], root=tmp_path, folder=tmp_path / "a" / "b" / "run")
    finally:
        os.umask(before)
    modes = {
        path: stat.S_IMODE(path.stat().st_mode)
        for path in (
            tmp_path / ".holdfast",
            tmp_path / RUNS,
            run.path,
            run.stages,
            stage.path,
            far.path,
            tmp_path / "a",
        )
    }
    assert modes[tmp_path / ".holdfast"] == modes[tmp_path / RUNS] == modes[tmp_path / "a"] == 0o755 & ~umask
    assert modes[run.path] == modes[run.stages] == modes[stage.path] == modes[far.path] == 0o700


def test_folder_that_may_not_be_entered_is_no_run(tmp_path):
    """A stranger's private run folder among the others: passed over without an error."""
    mine = left_behind(tmp_path, "mine")
    closed = left_behind(tmp_path, "closed")
    closed.path.chmod(0)
    try:
        if os.access(closed.path, os.X_OK):
            pytest.skip("this user enters every folder, as root does")
        assert folder.find(None, root=tmp_path).name == mine.name
    finally:
        closed.path.chmod(0o700)


def test_who_is_trusted_under_sudo(monkeypatch):
    """Root trusts the user who called sudo; another user does not take that variable's word for it."""
    caller = os.geteuid() + 1
    monkeypatch.setenv("SUDO_UID", str(caller))
    assert (caller in trusted_users()) == (os.geteuid() == 0)

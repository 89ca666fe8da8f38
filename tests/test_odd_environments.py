"""Surroundings in which little works: a folder that is gone or closed, no home. Sentences, no tracebacks."""

from __future__ import annotations

import errno
import os
import subprocess

import pytest
from running import HOLDFAST, environment

from holdfast.process.launch_errors import make_launch_error
from holdfast.process.python_discovery import find_program, find_script
from holdfast.schema.errors import FolderGone
from holdfast.storage import folder

COMMANDS = [
    ["run", "--", "true"],
    ["run", "plan.toml"],
    ["run", "--dir", "x", "--", "true"],
    ["check", "--", "true"],
    ["init"],
    ["init", "data.yaml"],
    ["fit", "plan.toml"],
    ["status"],
    ["status", "--json"],
    ["report"],
    ["resume"],
    ["resume", "x"],
    ["diagnose", "x"],
    ["drill", "healthy", "--dir", "x"],
]


def test_working_folder_that_is_gone(tmp_path):
    """Every command that needs it, started in a folder that was removed: exit status 2 and a sentence."""
    gone = tmp_path / "gone"
    gone.mkdir()
    commands = "\n".join(" ".join(words) for words in COMMANDS)
    program = (
        "import os, sys\nos.rmdir(os.getcwd())\nfrom holdfast import __main__ as way_in\n"
        "for line in sys.stdin.read().splitlines():\n"
        "    sys.argv = ['holdfast', *line.split()]\n"
        "    try:\n        way_in.main()\n        code = 0\n"
        "    except SystemExit as left:\n        code = left.code\n"
        "    except BaseException as error:\n        code = repr(error)\n"
        "    print('STATUS', code, line, flush=True)\n"
    )
    python = HOLDFAST.with_name("python")
    ran = subprocess.run(
        [str(python), "-c", program],
        input=commands,
        cwd=gone,
        env=environment(),
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    statuses = [line for line in ran.stdout.splitlines() if line.startswith("STATUS")]
    assert statuses == [f"STATUS 2 {' '.join(words)}" for words in COMMANDS], ran.stderr
    assert ran.stderr.count("no longer exists") == len(COMMANDS) - 2


def test_working_folder_that_cannot_be_told(monkeypatch):
    """Whatever the system says: one sentence for all commands."""

    def gone():
        raise FileNotFoundError(errno.ENOENT, "No such file or directory")

    monkeypatch.setattr(os, "getcwd", gone)
    with pytest.raises(FolderGone, match=r"no longer exists.*\n.*change to an existing folder"):
        folder.working_folder()


@pytest.fixture
def closed(tmp_path, monkeypatch):
    """A folder that may not be entered. Where this user enters every folder, as root does, the calls that would fail are made to."""
    path = tmp_path / "closed"
    path.mkdir()
    (path / "train.sh").write_text("#!/bin/sh\n")
    path.chmod(0)
    if not os.access(path, os.X_OK):
        yield path
        path.chmod(0o700)
        return
    path.chmod(0o700)
    stat, access = os.stat, os.access

    def refuse(place, *args, **kwargs):
        if str(path) + os.sep in str(place):
            raise PermissionError(errno.EACCES, "Permission denied", str(place))
        return stat(place, *args, **kwargs)

    monkeypatch.setattr(os, "stat", refuse)
    monkeypatch.setattr(os, "access", lambda place, mode: str(path) not in str(place) and access(place, mode))
    yield path


DENIED = PermissionError(errno.EACCES, "Permission denied")


def test_program_in_a_folder_that_may_not_be_entered(closed, tmp_path):
    """It cannot be known whether it is there: the sentence says what stands in the way."""
    error = make_launch_error([str(closed / "train.sh")], tmp_path, {}, DENIED)
    assert "permission denied for one of its parent folders" in str(error)
    assert "Next:" in str(error)
    assert find_program(str(closed / "train.sh"), tmp_path, {}) is None
    assert find_script(["python", str(closed / "train.py")], tmp_path) is None


def test_working_folder_that_may_not_be_entered(closed):
    """The plan's folder is closed to this user."""
    assert ": permission denied." in str(make_launch_error(["true"], closed, dict(os.environ), DENIED))


def test_program_on_a_path_with_a_closed_folder(closed, tmp_path):
    """A closed folder on PATH is passed over, as the system does."""
    error = make_launch_error(
        ["nothing-of-this-name"], tmp_path, {"PATH": str(closed)}, FileNotFoundError(errno.ENOENT, "")
    )
    assert "was not found" in str(error)


def test_name_that_is_too_long(tmp_path):
    """No file has such a name; that is no error of ours."""
    assert find_script(["python", "x" * 5000 + ".py"], tmp_path) is None
    assert "was not found" in str(make_launch_error(["./" + "x" * 5000], tmp_path, {}, OSError(errno.ENAMETOOLONG, "")))


def test_program_in_a_home_that_is_not_known(tmp_path):
    """`~nosuchuser/bin/python`: no such program."""
    assert find_program("~nosuchuser/bin/python", tmp_path, {}) is None

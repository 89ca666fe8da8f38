"""What `check` and its like start ends with them, however they end; scratch folders do not stay, nor copies of secrets."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
import time
from typing import TYPE_CHECKING

import psutil
import pytest
from running import HOLDFAST, environment

from holdfast.preflight.dry_run import scratch
from holdfast.process.helper_processes import (
    LOCK,
    MARK,
    PREFIX,
    HelperProcesses,
    HelpersStopping,
    remove_stale_folders,
    terminate_marked,
)

if TYPE_CHECKING:
    from pathlib import Path

DAEMON = """
import os, sys
if os.fork():
    os._exit(0)
os.setsid()
if os.fork():
    os._exit(0)
with open("daemon.new", "w") as file:
    file.write(str(os.getpid()))
os.rename("daemon.new", "daemon")
os.execve("/bin/sleep", ["sleep", "600"], {})
"""
"""Leaves its session, its parents and its environment."""
SLEEPS = "import time; print('here', flush=True); time.sleep(600)"
CHECKS = """
import os, sys
from pathlib import Path
import typer
from holdfast.preflight.checks import by_id
from holdfast.preflight.checks.check import CheckContext
from holdfast.preflight.checks.runner import run_all
from holdfast.launch.interrupts import terminate_helpers_on_signal
from holdfast.machine import this_machine

context = CheckContext(cwd=Path(sys.argv[1]), machine=this_machine(), environment=dict(os.environ), command=(sys.executable, "train.py"))
try:
    with terminate_helpers_on_signal():
        list(run_all([by_id()["learning-first-steps"]], context, seconds=120.0))
except typer.Exit as done:
    sys.exit(done.exit_code)
"""
"""As `holdfast check` does it, without asking the interpreter first."""
TRAINS = """
import os, subprocess, sys, time
beside = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"], start_new_session=True)
with open("pids.new", "w") as file:
    file.write("%d %d" % (os.getpid(), beside.pid))
os.rename("pids.new", "pids")
time.sleep(600)
"""
"""A training that has not made a step yet, and a process of its own in another session."""


def lives(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def until(true, seconds=60.0):
    """Whether it came true: waits for what a process does by itself."""
    end = time.monotonic() + seconds
    while not true() and time.monotonic() < end:
        time.sleep(0.02)
    return bool(true())


@pytest.fixture
def training(tmp_path):
    """A folder to train in, and one for temporary files."""
    (tmp_path / "work").mkdir()
    (tmp_path / "tmp").mkdir()
    (tmp_path / "work/train.py").write_text(textwrap.dedent(TRAINS))
    (tmp_path / "work/.env").write_text("PASSWORD=1")
    return tmp_path


def interrupted(folder: Path, command: list[str], number: int) -> tuple[subprocess.Popen[str], list[int]]:
    process = subprocess.Popen(
        command,
        cwd=folder / "work",
        env=environment(TMPDIR=str(folder / "tmp")),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        assert until(lambda: told_in(folder)), "the training was never started"
        pids = [int(pid) for pid in told_in(folder)[0].read_text().split()]
        process.send_signal(number)
    except BaseException:
        process.kill()
        raise
    return process, pids


def told_in(folder: Path) -> list[Path]:
    """Where the training tells its pids: in the scratch copy of its folder."""
    return list((folder / "tmp").glob(f"{PREFIX}*/root{folder / 'work/pids'}"))


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_ends_what_was_started_before_it_exits(training, number):
    """The training, what left its session, and the scratch; one sentence, and the exit status of the signal."""
    process, pids = interrupted(training, [sys.executable, "-c", CHECKS, str(training / "work")], number)
    _, said = process.communicate(timeout=60)
    assert [pid for pid in pids if lives(pid)] == []
    assert list((training / "tmp").iterdir()) == []
    assert process.returncode == 128 + number
    assert said.splitlines()[-1].startswith("holdfast: interrupted by")
    assert "Traceback" not in said


def test_what_a_killed_check_started_ends_by_itself(training):
    """SIGKILL leaves it no time: its watchdog ends the training and removes the scratch."""
    process, pids = interrupted(training, [sys.executable, "-c", CHECKS, str(training / "work")], signal.SIGKILL)
    process.communicate(timeout=60)
    assert until(lambda: not any(map(lives, pids)))
    assert until(lambda: not list((training / "tmp").iterdir()))


def test_ctrl_c_on_the_command_itself(training):
    """`holdfast check -- COMMAND`, from its first word to its exit."""
    command = [str(HOLDFAST), "check", "--only", "learning-first-steps", "--", sys.executable, "train.py"]
    process, pids = interrupted(training, command, signal.SIGINT)
    _, said = process.communicate(timeout=60)
    assert [pid for pid in pids if lives(pid)] == []
    assert (process.returncode, said.count("interrupted by Ctrl-C")) == (130, 1)
    assert list((training / "tmp").iterdir()) == []


# --- the parts --------------------------------------------------------------------------------------------------------


def sleeping(**variables: str) -> subprocess.Popen[str]:
    process = subprocess.Popen(
        [sys.executable, "-c", SLEEPS],
        env={**os.environ, **variables},
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "here\n"
    return process


def test_a_session_leaves_none_behind_and_touches_nobody_else(tmp_path, monkeypatch):
    """What a check that was given up has started ends with the session; what does not bear the mark, or another, lives."""
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    helpers = HelperProcesses()
    others = [sleeping(), sleeping(**{MARK: "0123"})]
    try:
        with helpers.session() as outer:
            with helpers.session() as inner, helpers.scratch() as (folder, variables):
                assert inner == outer == variables
                assert folder.stat().st_mode & 0o077 == 0
                ours = sleeping(**variables)
            assert ours.poll() is None, "the outermost session counts"
            assert not folder.exists()
        assert ours.wait(30) == -signal.SIGTERM
        assert [other.poll() for other in others] == [None, None]
    finally:
        for other in others:
            other.kill()
            other.communicate()
        ours.communicate()


def test_nothing_starts_while_all_is_ended():
    """A thread that goes on after an interruption does not start the next one."""
    helpers = HelperProcesses()
    with helpers.session() as variables:
        ours = sleeping(**variables)
        assert helpers.terminate() == []
        with pytest.raises(HelpersStopping), helpers.session():
            pass
    assert ours.wait(30) == -signal.SIGTERM
    ours.communicate()
    helpers.allow_starts()
    with helpers.session():
        pass


def test_one_that_does_not_listen_is_killed():
    """SIGTERM first, then SIGKILL."""
    deaf = "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN); " + SLEEPS
    process = subprocess.Popen(
        [sys.executable, "-c", deaf], env={**os.environ, MARK: "a b"}, stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    process.stdout.readline()
    assert terminate_marked("b", time.time() + 3600) == [], "nothing that is older than the start is asked about"
    assert process.poll() is None
    assert terminate_marked("b", 0.0, grace_s=0.2) == []
    assert process.wait(30) == -signal.SIGKILL
    process.communicate()


def test_only_folders_whose_owner_is_gone_are_removed(tmp_path):
    """A held lock, a new folder without one, a link, a file and somebody else's folder stay."""
    kept = tmp_path / "kept"
    kept.mkdir()
    (kept / LOCK).write_bytes(b"")
    dead, held, new, old = (tmp_path / f"{PREFIX}{name}" for name in ("dead", "held", "new", "old"))
    for folder in (dead, held, new, old):
        folder.mkdir()
    (dead / LOCK).write_bytes(b"")
    (dead / "link").symlink_to(kept)
    os.utime(old, (0, 0))
    (tmp_path / f"{PREFIX}link").symlink_to(kept)
    (tmp_path / f"{PREFIX}file").write_text("")
    foreign = tmp_path / f"{PREFIX}foreign"
    if os.geteuid() == 0:
        foreign.mkdir()
        (foreign / LOCK).write_bytes(b"")
        os.chown(foreign, 12345, 12345)
    locker = subprocess.Popen(
        [
            sys.executable,
            "-c",
            "import fcntl, sys; f = open(sys.argv[1], 'w'); fcntl.flock(f, 2); " + SLEEPS,
            held / LOCK,
        ],
        stdout=subprocess.PIPE,
        text=True,
    )
    assert locker.stdout is not None
    locker.stdout.readline()
    assert remove_stale_folders(tmp_path) == [dead, old]
    assert (kept / LOCK).exists()
    assert foreign.exists() == (os.geteuid() == 0)
    locker.kill()
    locker.communicate()
    assert remove_stale_folders(tmp_path) == [held]


def test_secrets_are_read_and_not_copied(tmp_path):
    """They are links: a scratch that is left behind holds none."""
    project = tmp_path / "project"
    (project / ".aws").mkdir(parents=True)
    names = [".env", ".env.local", "key.pem", "wandb_token.txt", ".aws/credentials", "tokenizer.json", "secrets.py"]
    for name in names:
        (project / name).write_text(name)
    made = scratch.make(project, tmp_path / "scratch")
    links = [name for name in names if (made.folder / name).resolve().is_relative_to(project)]
    assert links == names[:5]
    assert [(made.folder / name).read_text() for name in names] == names


@pytest.mark.skipif(
    not sys.platform.startswith("linux"), reason="only Linux gives orphans to a process that asks for them"
)
@pytest.mark.parametrize("interrupted", [False, True])
def test_a_daemon_without_mark_and_session_does_not_outlive_the_scratch(tmp_path, interrupted):
    """It forked twice, leads its own session's remains and has an empty environment: as an orphan it became our child."""
    helpers = HelperProcesses()
    beside = subprocess.Popen(["sleep", "600"], env={})
    try:
        with helpers.scratch() as (folder, mark):
            started = subprocess.Popen([sys.executable, "-c", DAEMON], cwd=tmp_path, env={**os.environ, **mark})
            assert started.wait() == 0
            until((tmp_path / "daemon").exists)
            daemon = psutil.Process(int((tmp_path / "daemon").read_text()))
            until(lambda: daemon.name() == "sleep")
            assert daemon.environ() == {}
            if interrupted:
                assert helpers.terminate() == []
                assert not daemon.is_running() or daemon.status() == psutil.STATUS_ZOMBIE
        assert not daemon.is_running()  # and no zombie of it is left
        assert not folder.exists()
        assert beside.poll() is None  # a child from before is nobody's orphan
    finally:
        beside.kill()
        beside.wait()


def test_a_scratch_in_the_working_folder_does_not_hold_itself(tmp_path):
    """TMPDIR may lie in the folder that is copied: neither this scratch nor another one is copied or watched."""
    (tmp_path / "train.py").write_text("1")
    for place in (tmp_path / "tmp" / f"{PREFIX}one" / "root", tmp_path / f"{PREFIX}two" / "root"):
        place.parent.mkdir(parents=True)
        (place.parent / "output").write_text("x")
        made = scratch.make(tmp_path, place)
        assert [path.name for path in made.folder.rglob("*") if path.is_file()] == ["train.py"]
    assert list(scratch.stat_files(tmp_path)) == [str(tmp_path / "train.py")]

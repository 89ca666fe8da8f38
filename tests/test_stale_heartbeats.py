"""What a killed supervisor left in the memory's file system goes at the next start; nothing that lives or is another's does."""

from __future__ import annotations

import fcntl
import os
import subprocess
from pathlib import Path

import pytest

from holdfast.probe.holdfast_probe import heartbeat
from holdfast.storage.stale_heartbeats import LOST_S, settle_stale

HERE = "this boot/1"


@pytest.fixture
def memory(tmp_path, monkeypatch):
    """A folder in the place of /dev/shm."""
    folder = tmp_path / "memory"
    folder.mkdir()
    monkeypatch.setattr(heartbeat, "MEMORY", str(folder))
    monkeypatch.setattr(heartbeat, "_TABLE_PATH", heartbeat.re.compile(str(folder) + r"/holdfast-[0-9]+-[0-9a-f]{16}"))
    return folder


def gone():
    """A pid that nobody has."""
    process = subprocess.Popen(["true"])
    process.wait()
    return process.pid


def left_by_a_killed_supervisor(tmp_path, memory, *, supervisor=None, training=None, space=HERE, name="run"):
    run = tmp_path / name
    run.mkdir()
    (run / "lock").touch()
    heartbeat.create(str(run / "heartbeat"), pid_space=space)
    heart = heartbeat.Heart(str(run / "heartbeat"), 0, training if training is not None else gone())
    heart.step(7, 1.0, (1.0, 0.5, 1, 1), "training")
    heart.close()
    table = heartbeat.find_table(str(run / "heartbeat"))
    pid = supervisor if supervisor is not None else gone()
    renamed = memory / f"holdfast-{pid}-{os.urandom(8).hex()}"
    Path(table).rename(renamed)
    (run / "heartbeat").write_bytes(heartbeat.ELSEWHERE + str(renamed).encode())
    return run, renamed


def test_a_stale_table_becomes_the_runs_own(tmp_path, memory):
    """It leaves the memory, and a later `resume` still knows the exact last step."""
    run, table = left_by_a_killed_supervisor(tmp_path, memory)
    settle_stale(HERE, memory)
    assert not table.exists()
    assert heartbeat.read(str(run / "heartbeat"))[0].step == 7
    assert heartbeat.find_table(str(run / "heartbeat")) == str(run / "heartbeat")


@pytest.mark.parametrize(
    ("how", "old"),
    [
        ({"supervisor": os.getpid()}, True),
        ({"training": os.getpid()}, True),
        ({"space": "another boot/2"}, False),
        ({"space": ""}, False),
    ],
)
def test_what_may_be_in_use_is_left(tmp_path, memory, how, old):
    """The supervisor lives, the training lives, or their pids are of another container."""
    _, table = left_by_a_killed_supervisor(tmp_path, memory, **how)
    if old:
        os.utime(table, (1, 1))
    settle_stale(HERE, memory)
    assert table.exists()


@pytest.mark.parametrize("space", ["another boot/2", ""])
def test_a_table_of_another_container_goes_where_nobody_holds_its_run(tmp_path, memory, space):
    """After a day, and only where the run lies here: the lock says that its supervisor is gone."""
    run, table = left_by_a_killed_supervisor(tmp_path, memory, space=space)
    _, lost = left_by_a_killed_supervisor(tmp_path, memory, space=space, name="lost")
    (tmp_path / "lost").rename(tmp_path / "elsewhere")
    for path in (table, lost):
        os.utime(path, (1, 1))
    with (run / "lock").open() as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        settle_stale(HERE, memory)
        assert table.exists()
    settle_stale(HERE, memory)
    assert (table.exists(), lost.exists()) == (False, True)
    assert heartbeat.read(str(run / "heartbeat"))[0].step == 7


def test_a_run_that_somebody_holds_is_left(tmp_path, memory):
    """`resume` has just begun on it."""
    run, table = left_by_a_killed_supervisor(tmp_path, memory)
    with (run / "lock").open() as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        settle_stale(HERE, memory)
    assert table.exists()


def test_a_table_without_its_run_goes_after_an_hour(tmp_path, memory):
    """The run may only have been moved; and one that was cut off while it was written has nothing to say."""
    run, table = left_by_a_killed_supervisor(tmp_path, memory)
    run.rename(tmp_path / "moved")
    cut = memory / f"holdfast-{gone()}-{'a' * 16}"
    cut.write_bytes(b"HF")
    settle_stale(HERE, memory)
    assert (table.exists(), cut.exists()) == (True, True)
    for path in (table, cut):
        os.utime(path, (path.stat().st_mtime - LOST_S - 60,) * 2)
    settle_stale(HERE, memory)
    assert (table.exists(), cut.exists()) == (False, False)


def test_foreign_names_links_and_pipes_are_left(tmp_path, memory):
    """Only what looks as ours and is a regular file of this user."""
    victim = tmp_path / "victim"
    victim.write_text("mine")
    pid = gone()
    link, pipe = memory / f"holdfast-{pid}-{'b' * 16}", memory / f"holdfast-{pid}-{'c' * 16}"
    link.symlink_to(victim)
    os.mkfifo(pipe)
    others = [memory / name for name in ("holdfast-1x-0000000000000000", f"holdfast-{pid}-short", "sem.holdfast")]
    for path in others:
        path.write_text("x")
        os.utime(path, (1, 1))
    settle_stale(HERE, memory)
    assert link.is_symlink()
    assert victim.read_text() == "mine"
    assert pipe.exists()
    assert all(path.exists() for path in others)


def test_a_heartbeat_that_was_planted_is_not_read(tmp_path):
    """A FIFO or a link in its place: nothing is waited for, and nothing is known."""
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "link").symlink_to("/dev/zero")
    assert heartbeat.read(str(tmp_path / "pipe")) == {}
    assert heartbeat.read(str(tmp_path / "link")) == {}


def test_the_table_is_ours_alone(tmp_path, memory):
    """Made anew under a random name, readable by this user only, whatever the umask."""
    before = os.umask(0)
    try:
        heartbeat.create(str(tmp_path / "heartbeat"))
    finally:
        os.umask(before)
    table = heartbeat.find_table(str(tmp_path / "heartbeat"))
    assert Path(table).stat().st_mode & 0o777 == 0o600
    assert (tmp_path / "heartbeat").stat().st_mode & 0o777 == 0o600

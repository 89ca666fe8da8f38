"""The user's own command at an event: never in the way of the run, bounded, and gone when the run is."""

from __future__ import annotations

import json
import os
import shlex
import sys
import time

import psutil
import pytest

from holdfast.diagnosis.run_state import RunState
from holdfast.process.process_identity import is_alive
from holdfast.schema import events
from holdfast.storage.folder import RunFolder
from holdfast.supervisor import notify
from holdfast.supervisor.notify import Notifier


def notifier(folder, program):
    return Notifier(shlex.join([sys.executable, "-c", program]), RunFolder(folder))


def tell(notifier, reason="over"):
    notifier(events.RunEnded(at=1.0, verdict="learned", reason=reason), RunState())


def below():
    return [each for each in psutil.Process().children(recursive=True) if is_alive(each)]


def test_it_gets_json_and_its_output_is_kept(tmp_path):
    """However large the message is: it is not written into a pipe that nobody may read."""
    ringing = notifier(tmp_path, "import sys; text = sys.stdin.read(); print(len(text), text[:60])")
    tell(ringing, "x" * 300_000)
    ringing.close()
    said = (tmp_path / "on-event.log").read_text()
    assert int(said.split()[0]) > 300_000
    assert json.loads(said.split(" ", 1)[1].split(',"message')[0] + "}") == {"event": "end"}


def test_one_that_prints_without_end_is_cut_and_ended(tmp_path, monkeypatch):
    """The log stays bounded, says so, and nothing of it goes on after the run."""
    monkeypatch.setattr(notify, "MAX_OUTPUT", 10_000)
    ringing = notifier(tmp_path, "while True: print('x' * 1000)")
    tell(ringing)
    ringing.close()
    log = (tmp_path / "on-event.log").read_text()
    assert len(log) < 11_000
    assert "it printed more than 10,000 bytes and was terminated" in log
    assert below() == []


def test_the_log_of_a_run_is_bounded(tmp_path, monkeypatch):
    """Many notifications together do not pass its bound either."""
    monkeypatch.setattr(notify, "MAX_LOG", 500)
    ringing = notifier(tmp_path, "print('x' * 400)")
    for _ in range(3):
        tell(ringing)
    ringing.close()
    assert (tmp_path / "on-event.log").stat().st_size == 500


def test_one_that_hangs_is_ended_with_its_group(tmp_path, monkeypatch):
    """With what it started, and although it ignores SIGTERM."""
    monkeypatch.setattr(notify, "MAX_WAIT_S", 0.0)
    program = (
        "import signal, subprocess, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); "
        "subprocess.Popen(['sleep', '1000']); time.sleep(1000)"
    )
    ringing = notifier(tmp_path, program)
    tell(ringing)
    deadline = time.monotonic() + 30
    while len(below()) < 2:
        assert time.monotonic() < deadline
        time.sleep(0.01)
    ringing.close()
    while below():
        assert time.monotonic() < deadline
        time.sleep(0.01)
    assert "the run has ended" in (tmp_path / "on-event.log").read_text()


def test_what_one_that_hangs_put_into_another_session_is_ended_too(tmp_path, monkeypatch):
    """It is in no group of ours, but has inherited the mark."""
    monkeypatch.setattr(notify, "MAX_WAIT_S", 0.0)
    program = (
        "import subprocess, pathlib, time, os; p = subprocess.Popen(['sleep', '1000'], start_new_session=True);"
        f"pathlib.Path({str(tmp_path / 'new')!r}).write_text(str(p.pid));"
        f"os.rename({str(tmp_path / 'new')!r}, {str(tmp_path / 'pid')!r}); time.sleep(1000)"
    )
    ringing = notifier(tmp_path, program)
    tell(ringing)
    deadline = time.monotonic() + 30
    while not (tmp_path / "pid").exists():
        assert time.monotonic() < deadline
        time.sleep(0.01)
    away = psutil.Process(int((tmp_path / "pid").read_text()))
    ringing.close()
    assert not is_alive(away)


@pytest.mark.parametrize("planted", ["link", "fifo"])
def test_nothing_is_written_through_what_somebody_planted(tmp_path, planted):
    """A link or a FIFO under the log's name is left alone."""

    log = tmp_path / "on-event.log"
    victim = tmp_path / "victim"
    victim.write_text("mine")
    log.symlink_to(victim) if planted == "link" else os.mkfifo(log)
    ringing = notifier(tmp_path, "print('hello')")
    tell(ringing)
    ringing.close()
    assert victim.read_text() == "mine"

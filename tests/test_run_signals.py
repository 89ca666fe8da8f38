"""Signals to the supervisor, and the supervisor's own death: what happens to the training, and how it goes on."""

from __future__ import annotations

import fcntl
import json
import os
import pty
import select
import signal
import subprocess
import sys
import termios
import time

import psutil
import pytest
from running import AGAIN, SAVES, command, environment, holdfast, holdfast_run, training

from holdfast.probe.holdfast_probe import heartbeat
from holdfast.schema import events
from holdfast.storage.folder import RunFolder
from holdfast.storage.journal import replay

PYTHON = sys.executable
ENDLESS = "def after(step):\n    print(step, flush=True)\n    time.sleep(0.02)\n"
SAVING = f"""{SAVES}
saves = after
def after(step):
    saves(step)
    print(step, flush=True)
    time.sleep(0.02)
"""


class Started:
    """A supervised training that runs, up to a named step."""

    def __init__(self, folder, part, options=(), steps=100_000):
        self.folder = folder
        self.run = RunFolder(folder / "run")
        self.process = subprocess.Popen(
            command(folder, PYTHON, training(folder, part), options=options),
            cwd=folder, env=environment(STEPS=str(steps)), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
            # A job of its own in this session, as a shell would make it: only then can it be stopped and continued.
            preexec_fn=lambda: os.setpgid(0, 0),  # noqa: PLW1509 - no threads here; process_group= came with 3.11
        )  # fmt: skip

    def until_step(self, step):
        for line in self.process.stdout:
            if line.strip() == str(step):
                return
        raise AssertionError(self.process.stderr.read())

    def training_pid(self):
        return next(e.event.pid for e in replay(self.run) if isinstance(e.event, events.AttemptStarted))

    def finish(self, timeout=60):
        self.stdout, self.stderr = self.process.communicate(timeout=timeout)
        return self.process.returncode

    @property
    def summary(self):
        return json.loads(self.run.summary.read_text())


def wait_until(condition, patience=30.0):
    """Wait for something that must happen; the bound is only there to fail instead of hanging."""
    deadline = time.monotonic() + patience
    while not condition():
        assert time.monotonic() < deadline, "it did not happen"
        time.sleep(0.02)


def shown_until(terminal, marker):
    """What a terminal shows, up to a marker that must come."""
    shown = b""
    while marker not in shown:
        assert select.select([terminal], [], [], 60)[0], shown
        shown += os.read(terminal, 4096)
    return shown


def gone(pid):
    try:
        return psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


def test_interrupt_once_asks_the_training_to_stop(tmp_path):
    """SIGINT reaches the training as KeyboardInterrupt, so that it can save; exit 130, nothing is tried again."""
    part = ENDLESS + "import atexit\natexit.register(lambda: print('saved by the training', flush=True))"
    started = Started(tmp_path, part)
    started.until_step(5)
    started.process.send_signal(signal.SIGINT)
    assert started.finish() == 130
    assert "saved by the training" in started.stdout
    assert (started.summary["verdict"], len(started.summary["attempts"])) == ("interrupted", 1)
    assert "holdfast resume" in started.stderr


def test_interrupt_twice_ends_it(tmp_path):
    """A training that ignores the first is ended by the second, workers and all."""
    part = (
        ENDLESS
        + "signal.signal(signal.SIGINT, lambda *_: print('no', flush=True))\nsignal.signal(signal.SIGTERM, signal.SIG_IGN)"
    )
    started = Started(tmp_path, part)
    started.until_step(5)
    started.process.send_signal(signal.SIGINT)
    started.until_step("no")
    pid = started.training_pid()
    started.process.send_signal(signal.SIGINT)
    for line in started.process.stderr:
        if "stopping the training process" in line:
            break
    started.process.send_signal(signal.SIGINT)  # and a third does not wait for the grace either
    assert started.finish() == 130
    assert gone(pid)


def test_terminate_is_resumable(tmp_path):
    """SIGTERM to Holdfast: exit 143; `holdfast resume` goes on from what was saved, and the run ends as if nothing was."""
    started = Started(tmp_path, SAVING, AGAIN, steps=40)
    started.until_step(17)
    started.process.send_signal(signal.SIGTERM)
    assert started.finish() == 143
    ran = holdfast(tmp_path, "resume", "run", env={"STEPS": "40"})
    assert ran.code == 0, ran.stderr
    second = ran.summary["attempts"][1]
    assert second["resumed"]["step"] >= 15
    assert second["last_step"] == 40
    assert ran.summary["verdict"] == "learned"
    again = holdfast(tmp_path, "resume", "run")
    assert (again.code, "nothing to resume" in again.stderr) == (2, True)


def test_killed_supervisor_stops_the_training_at_its_next_step(tmp_path):
    """SIGKILL to Holdfast itself: the training ends at its next step, and a new supervisor goes on from the journal."""
    started = Started(tmp_path, SAVING, AGAIN, steps=60)
    started.until_step(22)
    pid = started.training_pid()
    step = heartbeat.read(str(started.run.heartbeat))[0].step
    started.process.kill()
    started.process.wait()
    wait_until(lambda: gone(pid))
    assert step <= heartbeat.read(str(started.run.heartbeat))[0].step <= step + 3
    told = holdfast(tmp_path, "status", "run")
    assert "Holdfast was killed" in told.stdout
    assert f"holdfast resume {started.run.path}" in told.stdout
    ran = holdfast(tmp_path, "resume", "run", env={"STEPS": "60"})
    assert ran.code == 0, ran.stderr
    first, second = ran.summary["attempts"]
    assert first["stopped_by"] == "supervisor gone"
    assert first["last_step"] >= 22
    assert (second["resumed"]["step"] % 5, second["last_step"]) == (0, 60)
    goodput = ran.summary["goodput"]
    assert sum(goodput["buckets"].values()) == pytest.approx(goodput["wall_s"], abs=0.05)
    ended, continued = ran.of(events.AttemptEnded)[0], ran.of(events.RunContinued)[0]
    assert ended.at < continued.at  # when it last gave a sign of life, not when somebody looked for it
    started.process.communicate()


def test_resume_ends_a_training_that_outlived_its_supervisor(tmp_path):
    """With --observe-only nothing stops an orphan by itself; a new supervisor does not run beside it."""
    started = Started(tmp_path, ENDLESS, ["--observe-only"])
    started.until_step(5)
    pid = started.training_pid()
    started.process.kill()
    started.process.wait()
    assert not gone(pid)
    ran = holdfast(tmp_path, "resume", "run", env={"STEPS": "10"})
    assert gone(pid)
    assert ran.summary["attempts"][1]["last_step"] == 10
    started.process.communicate()


def test_hangup_does_not_end_the_run(tmp_path):
    """Closing the terminal: the run goes on and is recorded."""
    started = Started(tmp_path, ENDLESS, steps=60)
    started.until_step(5)
    started.process.send_signal(signal.SIGHUP)
    assert started.finish() == 0
    assert started.summary["attempts"][0]["last_step"] == 60
    assert any(isinstance(e.event, events.Signalled) and e.event.signal == "SIGHUP" for e in replay(started.run))


def test_other_signals_reach_the_training(tmp_path):
    part = ENDLESS + "signal.signal(signal.SIGUSR1, lambda *_: print('heard', flush=True))"
    started = Started(tmp_path, part, steps=200)
    started.until_step(5)
    started.process.send_signal(signal.SIGUSR1)
    started.until_step("heard")
    started.process.send_signal(signal.SIGTERM)
    assert started.finish() == 143


def test_suspended_is_no_hang(tmp_path):
    """SIGTSTP stops both; SIGCONT continues both; the pause is recorded, and no hang is seen in it."""
    started = Started(tmp_path, ENDLESS, ["--hang-after", "1"], steps=60)
    started.until_step(5)
    both = [psutil.Process(started.training_pid()), psutil.Process(started.process.pid)]
    started.process.send_signal(signal.SIGTSTP)
    wait_until(lambda: all(process.status() == psutil.STATUS_STOPPED for process in both))
    told = holdfast(tmp_path, "status", "run")
    assert "suspended" in told.stdout
    time.sleep(2.5)  # longer than the bound: were this seen as silence, it would be a hang
    started.process.send_signal(signal.SIGCONT)
    assert started.finish() == 0
    assert [f["rule"] for f in started.summary["findings"]] == []
    assert any(isinstance(e.event, events.Continued) and e.event.seconds > 2 for e in replay(started.run))


def test_a_question_to_the_user_is_no_hang(tmp_path):
    """A training that waits at a prompt on a terminal waits for a person, however long that takes."""
    script = training(tmp_path, "def after(step):\n    if step == 5: print('hello', input('name? '), flush=True)")
    keyboard, terminal = pty.openpty()
    process = subprocess.Popen(
        command(tmp_path, PYTHON, script, options=["--hang-after", "1"]),
        cwd=tmp_path, env=environment(), stdin=terminal, stdout=terminal, stderr=terminal, start_new_session=True,
        preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0),  # noqa: PLW1509 - no threads here
    )  # fmt: skip
    os.close(terminal)
    shown = shown_until(keyboard, b"name? ")
    time.sleep(3.5)  # longer than the bound and the confirmation
    os.write(keyboard, b"Ada\n")
    shown += shown_until(keyboard, "╯".encode())
    assert process.wait(60) == 0
    os.close(keyboard)
    assert b"hello Ada" in shown
    assert "step-hang" not in {
        f["rule"] for f in json.loads((tmp_path / "run" / "summary.json").read_text())["findings"]
    }


def test_second_supervisor_is_refused(tmp_path):
    started = Started(tmp_path, ENDLESS)
    started.until_step(3)
    refused = holdfast(tmp_path, "resume", "run")
    assert (refused.code, "already supervised" in refused.stderr) == (2, True)
    live = json.loads(holdfast(tmp_path, "status", "run", "--json").stdout)
    assert (live["state"], live["now"]["attempt"]) == ("running", 1)
    assert live["now"]["step"] >= 3
    started.process.send_signal(signal.SIGTERM)
    assert started.finish() == 143


def test_workers_of_a_killed_training_are_ended(tmp_path):
    """Processes that the training started do not outlive it into the next attempt."""
    part = """
import subprocess
if FIRST:
    worker = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(1000)"])
    print("worker", worker.pid, flush=True)
def after(step):
    if FIRST and step == 5: die()
"""
    ran = holdfast_run(tmp_path, PYTHON, training(tmp_path, part))
    assert ran.code == 0
    assert gone(int(ran.stdout.split()[1]))


def test_one_ctrl_c_ends_a_training_that_stands_still_and_is_deaf(tmp_path):
    """Stopped by SIGSTOP it hears nothing, and what it ignores it would not heed: it is woken, and after its grace killed."""
    program = (
        "import os, signal; [signal.signal(n, signal.SIG_IGN) for n in (signal.SIGINT, signal.SIGTERM)];"
        "print('up', flush=True); os.kill(os.getpid(), signal.SIGSTOP); signal.pause()"
    )
    (tmp_path / "plan.toml").write_text(
        f'command = [{json.dumps(PYTHON)}, "-c", {json.dumps(program)}]\ngrace_s = 0.3\n'
    )
    process = subprocess.Popen(
        [command(tmp_path)[0], "run", "--no-check", "--dir", "run", "plan.toml"],
        cwd=tmp_path, env=environment(), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    try:
        assert process.stdout.readline() == "up\n"
        run = RunFolder(tmp_path / "run")
        deadline = time.monotonic() + 30
        while not (started := [e.event for e in replay(run) if isinstance(e.event, events.AttemptStarted)]):
            assert time.monotonic() < deadline
            time.sleep(0.02)
        while psutil.Process(started[0].pid).status() != psutil.STATUS_STOPPED:
            assert time.monotonic() < deadline
            time.sleep(0.02)
        process.send_signal(signal.SIGINT)
        _, said = process.communicate(timeout=30)
    finally:
        process.kill()
        process.communicate()
    assert process.returncode == 130
    assert "SIGSTOP" in said
    assert not psutil.pid_exists(started[0].pid)

"""A fault while a command is being started, or right after: it is told in a sentence, and nothing is left running."""

from __future__ import annotations

import errno
import os
import resource
import sys
import time
from pathlib import Path

import psutil
import pytest

from holdfast.process.child_process import ChildProcess
from holdfast.process.process_identity import is_alive
from holdfast.process.streams import Streams
from holdfast.process.terminal import Terminal
from holdfast.schema.errors import CommandNotRunnable

NO_DESCRIPTOR = OSError(errno.EMFILE, "Too many open files")
TWO = [
    sys.executable,
    "-c",
    "import subprocess, time; subprocess.Popen(['sleep', '1000'], start_new_session=True); time.sleep(1000)",
]


def start(folder, terminal, command=TWO):
    logs = {"stdout_log": folder / "stdout.log", "stderr_log": folder / "stderr.log"}
    return ChildProcess.start(command, cwd=folder, env=os.environ, terminal=terminal, **logs)


@pytest.mark.parametrize(
    ("fault", "raised"),
    [
        (NO_DESCRIPTOR, CommandNotRunnable),
        (RuntimeError("can't start new thread"), CommandNotRunnable),
        (KeyError("a bug"), KeyError),
    ],
)
def test_a_command_that_cannot_be_watched_is_ended(tmp_path, monkeypatch, fault, raised):
    """No descriptor or thread is left for the logs: the command, which runs by then, is ended with all that it started."""
    started = []

    def fail(streams, logs, clock):
        root = psutil.Process().children()[-1]
        while not (below := root.children(recursive=True)):
            pass
        started.extend([root, *below])
        raise fault

    monkeypatch.setattr(Streams, "start_forwarders", fail)
    descriptors = psutil.Process().num_fds()
    with Terminal() as terminal, pytest.raises(raised):
        start(tmp_path, terminal)
    assert len(started) == 2
    deadline = time.monotonic() + 30  # the kernel takes a moment to be done with a killed process
    while any(is_alive(process) for process in started):
        assert time.monotonic() < deadline
        time.sleep(0.01)
    assert psutil.Process().num_fds() == descriptors


def test_no_descriptor_for_the_streams_is_a_sentence(tmp_path, monkeypatch):
    """Nothing was started yet: what happened and what to do."""

    def fail(_):
        raise NO_DESCRIPTOR

    monkeypatch.setattr(Streams, "__init__", lambda self, terminal: fail(terminal))
    with Terminal() as terminal, pytest.raises(CommandNotRunnable, match="Too many open files") as caught:
        start(Path(tmp_path), terminal)
    assert "ulimit -n" in caught.value.next_step


def test_a_training_is_ended_where_no_descriptor_is_free(tmp_path):
    """No process can be looked at then; that the child was not waited for yet is enough to know whose its pid is."""
    with Terminal() as terminal:
        child = start(tmp_path, terminal, ["sleep", "1000"])
        below = child.list_alive()
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (3, hard))
        try:
            child.terminate(60.0)
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        assert child.exited is not None
        assert child.exited.signal == "SIGTERM"  # it was asked, and not only killed after the grace
        child.terminate(1.0)
        child.close()
        assert below
        assert not any(is_alive(process) for process in below)

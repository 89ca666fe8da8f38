"""Notifications through the user's own command: JSON on its stdin, no shell, never blocking the run."""

from __future__ import annotations

import contextlib
import os
import secrets
import shlex
import shutil
import signal
import subprocess
import tempfile
import time
from typing import TYPE_CHECKING, Any

import msgspec

from holdfast.process.helper_processes import MARK, terminate_marked
from holdfast.schema import events
from holdfast.schema.errors import PlanInvalid
from holdfast.schema.json_text import to_bytes
from holdfast.schema.verdicts import Action
from holdfast.storage.redact import Redactor
from holdfast.storage.safe_files import open_handle

if TYPE_CHECKING:
    from holdfast.diagnosis.run_state import RunState
    from holdfast.storage.folder import RunFolder

MAX_WAIT_S = 10.0
"""How long the end of a run waits for running notifications."""
MAX_AT_ONCE = 8
MAX_OUTPUT = 256 << 10
"""Bytes that one notification may print; one that prints more is terminated."""
MAX_LOG = 8 << 20
"""Maximum size of a run's notification log in bytes; further output is dropped."""
POLL_S = 0.02
TERM_GRACE_S = 1.0
"""Time between SIGTERM and SIGKILL."""


class _Notification:
    """One running process with its group. It prints into a pipe, and blocks there if Holdfast stops reading."""

    def __init__(self, words: list[str], message: bytes, run: RunFolder) -> None:
        self._run = run
        self._printed = 0
        self._mark, self._started_at = secrets.token_hex(16), time.time()
        marked = {**os.environ, MARK: " ".join([*os.environ.get(MARK, "").split(), self._mark])}
        with tempfile.TemporaryFile() as stdin:  # not a pipe: writing to a process that does not read would block
            stdin.write(message)
            stdin.seek(0)
            self._pipe, write_end = os.pipe()
            try:
                os.set_blocking(self._pipe, False)
                self._process = subprocess.Popen(
                    words,
                    env=marked,
                    stdin=stdin,
                    stdout=write_end,
                    stderr=write_end,
                    start_new_session=True,
                    close_fds=True,
                )
            except BaseException:
                os.close(self._pipe)
                raise
            finally:
                os.close(write_end)

    def is_over(self) -> bool:
        """Read its output. Return True if it has exited."""
        ended = self._process.poll() is not None  # before the last read, which then misses nothing
        if not self._read() and not ended:
            self.stop(f"it printed more than {MAX_OUTPUT:,} bytes and was terminated")
            return True
        if ended:
            os.close(self._pipe)
        return ended

    def stop(self, why: str) -> None:
        """Terminate it with its process group, and all processes that inherited its mark. The group id is valid until it is waited for."""
        if self._process.poll() is None:
            for number in (signal.SIGTERM, signal.SIGKILL):
                with contextlib.suppress(OSError):
                    os.killpg(self._process.pid, number)
                with contextlib.suppress(subprocess.TimeoutExpired):
                    self._process.wait(TERM_GRACE_S)
                    break
        terminate_marked(self._mark, self._started_at, TERM_GRACE_S)
        self._append_to_log(f"\nholdfast: {why}\n".encode())
        os.close(self._pipe)

    def _read(self) -> bool:
        """Read pending output. Return False if it has printed too much."""
        while self._printed < MAX_OUTPUT:
            try:
                piece = os.read(self._pipe, min(65536, MAX_OUTPUT - self._printed))
            except OSError:  # nothing to read now
                return True
            if not piece:
                return True
            self._printed += len(piece)
            self._append_to_log(piece)
        return False

    def _append_to_log(self, piece: bytes) -> None:
        if not self._run.exists_unchanged():
            return
        with contextlib.suppress(OSError):
            flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
            handle = open_handle(self._run.notifications, flags)
            try:
                room = MAX_LOG - os.fstat(handle).st_size
                if room > 0:
                    os.write(handle, piece[:room])
            finally:
                os.close(handle)


class Notifier:
    """Runs the command at start, finding, restart and end, without waiting for it while the run is active."""

    def __init__(self, command: str, run: RunFolder) -> None:
        self._words = split_command(command)
        self._run = run
        self._running: list[_Notification] = []

    def __call__(self, event: events.Event, _state: RunState) -> None:
        self._running = [notification for notification in self._running if not notification.is_over()]
        message = build_message(event)
        if message is None or len(self._running) >= MAX_AT_ONCE:
            return
        is_stage = self._run.path.parent.name == "stages"
        if is_stage and message["event"] == "end":
            return  # the run as a whole reports its stages
        name = f"{self._run.path.parent.parent.name}/{self._run.name}" if is_stage else self._run.name
        payload = {**message, "run": name, "dir": str(self._run.path), "at": event.at}
        # A notification that cannot be sent is for the user to fix, not a reason to stop a training.
        with contextlib.suppress(OSError, ValueError):
            encoded = to_bytes(payload) + b"\n"
            self._running.append(_Notification(self._words, encoded, self._run))

    def close(self) -> None:
        """Give running notifications a moment to finish, then terminate them."""
        deadline = time.monotonic() + MAX_WAIT_S
        running, self._running = self._running, []
        with contextlib.suppress(KeyboardInterrupt):
            while time.monotonic() < deadline:
                running = [notification for notification in running if not notification.is_over()]
                if not running:
                    return
                time.sleep(POLL_S)
        for notification in running:
            notification.stop("this notification was terminated because the run has ended")


def split_command(command: str) -> list[str]:
    """Split the command into words. Raise PlanInvalid if it cannot be run, before anything is started."""
    try:
        words = shlex.split(command)
    except ValueError as error:
        raise PlanInvalid(
            f"--on-event {Redactor().value_for_message(command)!r} cannot be split into words: {error}."
        ) from error
    if not words or shutil.which(words[0]) is None:
        raise PlanInvalid(
            f"--on-event: there is no program {Redactor().value_for_message(words[0]) if words else command!r}.",
            next_step="give the path of a program; it is run without a shell and gets JSON on its stdin",
        )
    return words


def build_message(event: events.Event) -> dict[str, Any] | None:
    """Return the message for an event, or None if it is not worth a notification."""
    if isinstance(event, events.AttemptStarted) and event.attempt == 1:
        return {"event": "start", "message": "Training has started.", "command": event.command}
    if isinstance(event, events.FindingMade) and event.finding.severity != "note" and not event.finding.updated:
        finding = event.finding
        return {"event": "finding", "message": finding.message, "finding": msgspec.to_builtins(finding)}
    if isinstance(event, events.DecisionMade) and event.decision.action in (Action.RESTART, Action.RETRY):
        decision = event.decision
        return {"event": "restart", "message": decision.why, "decision": msgspec.to_builtins(decision)}
    if isinstance(event, events.StageEnded):
        text = f"Stage {event.name}: {event.gate_message or event.reason}"
        return {"event": "stage-end", "message": text, "stage": event.name, "verdict": event.verdict}
    if isinstance(event, events.StageLeftOut):
        return {"event": "stage-end", "message": f"Stage {event.name} is skipped: {event.why}", "stage": event.name}
    if isinstance(event, events.RunEnded):
        return {"event": "end", "message": event.reason, "verdict": event.verdict, "exit_status": event.exit_status}
    return None

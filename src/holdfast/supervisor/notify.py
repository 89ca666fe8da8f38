"""The user's own command at the moments that matter: JSON on its stdin, no shell, never in the way of the run."""

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
"""How long the end of a run waits for notifications that are under way."""
MAX_AT_ONCE = 8
MAX_OUTPUT = 256 << 10
"""Bytes that one notification may print; one that prints more is ended."""
MAX_LOG = 8 << 20
"""Bytes that the log of a run holds; what is printed beyond is not kept."""
LOOK_S = 0.02
LEAVE_S = 1.0
"""Between asking what is ended to end, and killing it."""


class _Notification:
    """One process under way, with its group. What it prints comes through a pipe, which it waits at where we do not read on."""

    def __init__(self, words: list[str], message: bytes, run: RunFolder) -> None:
        self._run = run
        self._printed = 0
        self._mark, self._since = secrets.token_hex(16), time.time()
        marked = {**os.environ, MARK: " ".join([*os.environ.get(MARK, "").split(), self._mark])}
        with tempfile.TemporaryFile() as stdin:  # not a pipe: nobody waits for one that does not read
            stdin.write(message)
            stdin.seek(0)
            self._pipe, its_end = os.pipe()
            try:
                os.set_blocking(self._pipe, False)
                self._process = subprocess.Popen(
                    words,
                    env=marked,
                    stdin=stdin,
                    stdout=its_end,
                    stderr=its_end,
                    start_new_session=True,
                    close_fds=True,
                )
            except BaseException:
                os.close(self._pipe)
                raise
            finally:
                os.close(its_end)

    def is_over(self) -> bool:
        """Take what it printed; True when it has ended."""
        ended = self._process.poll() is not None  # before the last look, which then misses nothing
        if not self._read() and not ended:
            self.end(f"it printed more than {MAX_OUTPUT:,} bytes and was ended")
            return True
        if ended:
            os.close(self._pipe)
        return ended

    def end(self, why: str) -> None:
        """With its whole group, which is its own as long as it was not waited for, and with all that inherited its mark."""
        if self._process.poll() is None:
            for number in (signal.SIGTERM, signal.SIGKILL):
                with contextlib.suppress(OSError):
                    os.killpg(self._process.pid, number)
                with contextlib.suppress(subprocess.TimeoutExpired):
                    self._process.wait(LEAVE_S)
                    break
        terminate_marked(self._mark, self._since, LEAVE_S)
        self._keep(f"\nholdfast: {why}\n".encode())
        os.close(self._pipe)

    def _read(self) -> bool:
        """False where it has printed too much."""
        while self._printed < MAX_OUTPUT:
            try:
                piece = os.read(self._pipe, min(65536, MAX_OUTPUT - self._printed))
            except OSError:  # nothing there now
                return True
            if not piece:
                return True
            self._printed += len(piece)
            self._keep(piece)
        return False

    def _keep(self, piece: bytes) -> None:
        if not self._run.is_there():
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
    """Starts the command for start, finding, restart and end, and does not wait for it while the run lives."""

    def __init__(self, command: str, run: RunFolder) -> None:
        self._words = words_of(command)
        self._run = run
        self._running: list[_Notification] = []

    def __call__(self, event: events.Event, _state: RunState) -> None:
        self._running = [notification for notification in self._running if not notification.is_over()]
        message = message_for(event)
        if message is None or len(self._running) >= MAX_AT_ONCE:
            return
        of_stage = self._run.path.parent.name == "stages"
        if of_stage and message["event"] == "end":
            return  # the whole run tells of its stages
        name = f"{self._run.path.parent.parent.name}/{self._run.name}" if of_stage else self._run.name
        told = {**message, "run": name, "dir": str(self._run.path), "at": event.at}
        # A notification that cannot be sent is the user's to mend, not a reason to end a training.
        with contextlib.suppress(OSError, ValueError):
            encoded = to_bytes(told) + b"\n"
            self._running.append(_Notification(self._words, encoded, self._run))

    def close(self) -> None:
        """Let what is under way finish, for a moment; nothing of it outlives the run."""
        deadline = time.monotonic() + MAX_WAIT_S
        running, self._running = self._running, []
        with contextlib.suppress(KeyboardInterrupt):
            while time.monotonic() < deadline:
                running = [notification for notification in running if not notification.is_over()]
                if not running:
                    return
                time.sleep(LOOK_S)
        for notification in running:
            notification.end("the run has ended, and so was this notification")


def words_of(command: str) -> list[str]:
    """The command as words; says clearly what is wrong with it before anything is started."""
    try:
        words = shlex.split(command)
    except ValueError as error:
        raise PlanInvalid(f"--on-event {Redactor().given(command)!r} cannot be split into words: {error}.") from error
    if not words or shutil.which(words[0]) is None:
        raise PlanInvalid(
            f"--on-event: there is no program {Redactor().given(words[0]) if words else command!r}.",
            next_step="give the path of a program; it is run without a shell and gets JSON on its stdin",
        )
    return words


def message_for(event: events.Event) -> dict[str, Any] | None:
    """What to tell of an event, or None when it is not worth waking anybody."""
    if isinstance(event, events.AttemptStarted) and event.attempt == 1:
        return {"event": "start", "message": "The training has started.", "command": event.command}
    if isinstance(event, events.FindingMade) and event.finding.severity != "note" and not event.finding.updated:
        finding = event.finding
        return {"event": "finding", "message": finding.message, "finding": msgspec.to_builtins(finding)}
    if isinstance(event, events.DecisionMade) and event.decision.action in (Action.RESTART, Action.RETRY):
        decision = event.decision
        return {"event": "restart", "message": decision.why, "decision": msgspec.to_builtins(decision)}
    if isinstance(event, events.StageEnded):
        said = f"Stage {event.name}: {event.gate_message or event.reason}"
        return {"event": "stage-end", "message": said, "stage": event.name, "verdict": event.verdict}
    if isinstance(event, events.StageLeftOut):
        return {"event": "stage-end", "message": f"Stage {event.name} is left out: {event.why}", "stage": event.name}
    if isinstance(event, events.RunEnded):
        return {"event": "end", "message": event.reason, "verdict": event.verdict, "exit_status": event.exit_status}
    return None

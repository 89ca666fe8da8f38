"""The user's own command at the moments that matter: JSON on its stdin, no shell, never in the way of the run."""

from __future__ import annotations

import contextlib
import shlex
import shutil
import subprocess
import time
from typing import TYPE_CHECKING, Any

import msgspec

from holdfast.words import events
from holdfast.words.errors import PlanInvalid
from holdfast.words.json_text import to_bytes
from holdfast.words.verdicts import Action

if TYPE_CHECKING:
    from holdfast.judge.picture import Picture
    from holdfast.record.folder import RunFolder

LONGEST_S = 10.0
"""How long the end of a run waits for notifications that are under way."""
MOST_AT_ONCE = 8


class Notifier:
    """Starts the command for start, finding, restart and end, and does not wait for it while the run lives."""

    def __init__(self, command: str, run: RunFolder) -> None:
        self._words = words_of(command)
        self._run = run
        self._running: list[subprocess.Popen[bytes]] = []

    def __call__(self, event: events.Event, _picture: Picture) -> None:
        message = message_for(event)
        if message is None:
            return
        self._running = [process for process in self._running if process.poll() is None]
        if len(self._running) >= MOST_AT_ONCE:
            return
        of_stage = self._run.path.parent.name == "stages"
        if of_stage and message["event"] == "end":
            return  # the whole run tells of its stages
        name = f"{self._run.path.parent.parent.name}/{self._run.name}" if of_stage else self._run.name
        told = {**message, "run": name, "dir": str(self._run.path), "at": event.at}
        # A notification that cannot be sent is the user's to mend, not a reason to end a training.
        with contextlib.suppress(OSError), self._run.notifications.open("ab") as log:
            process = subprocess.Popen(
                self._words, stdin=subprocess.PIPE, stdout=log, stderr=log, start_new_session=True, close_fds=True
            )
            self._running.append(process)
            assert process.stdin is not None
            with process.stdin:
                process.stdin.write(to_bytes(told) + b"\n")

    def close(self) -> None:
        """Let what is under way finish, for a moment; it goes on by itself after that."""
        deadline = time.monotonic() + LONGEST_S
        with contextlib.suppress(KeyboardInterrupt):
            for process in self._running:
                with contextlib.suppress(subprocess.TimeoutExpired):
                    process.wait(max(0.0, deadline - time.monotonic()))


def words_of(command: str) -> list[str]:
    """The command as words; says clearly what is wrong with it before anything is started."""
    try:
        words = shlex.split(command)
    except ValueError as error:
        raise PlanInvalid(f"--on-event {command!r} cannot be split into words: {error}.") from error
    if not words or shutil.which(words[0]) is None:
        raise PlanInvalid(
            f"--on-event: there is no program {words[0] if words else command!r}.",
            next_step="give the path of a program; it is run without a shell and gets JSON on its stdin",
        )
    return words


def message_for(event: events.Event) -> dict[str, Any] | None:
    """What to tell of an event, or None when it is not worth waking anybody."""
    if isinstance(event, events.AttemptStarted) and event.attempt == 1:
        return {"event": "start", "message": "The training has started.", "command": event.command}
    if isinstance(event, events.FindingMade) and event.finding.severity != "note" and not event.finding.again:
        finding = event.finding
        return {"event": "finding", "message": finding.message, "finding": msgspec.to_builtins(finding)}
    if isinstance(event, events.DecisionMade) and event.decision.action in (Action.RESTART, Action.RETRY):
        decision = event.decision
        return {"event": "restart", "message": decision.why, "decision": msgspec.to_builtins(decision)}
    if isinstance(event, events.StageEnded):
        said = f"Stage {event.name}: {event.gate_says or event.reason}"
        return {"event": "stage-end", "message": said, "stage": event.name, "verdict": event.verdict}
    if isinstance(event, events.StageLeftOut):
        return {"event": "stage-end", "message": f"Stage {event.name} is left out: {event.why}", "stage": event.name}
    if isinstance(event, events.RunEnded):
        return {"event": "end", "message": event.reason, "verdict": event.verdict, "exit_status": event.exit_status}
    return None

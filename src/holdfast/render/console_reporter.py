"""Lines printed during a run: few, on stderr, between the training's own output."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any, TextIO

from holdfast.render.newline_guard import NewlineGuard
from holdfast.render.progress import progress
from holdfast.render.text import describe_change, describe_folder_change, describe_repeated_work, printable
from holdfast.schema import events
from holdfast.schema.verdicts import Action

if TYPE_CHECKING:
    from collections.abc import Callable

    from holdfast.diagnosis.run_state import RunState
    from holdfast.storage.folder import RunFolder

PROGRESS_S = 20.0
"""Print at most one progress line in this time."""


class ConsoleReporter:
    """Event listener that prints the events that matter to the user."""

    def __init__(
        self, run: RunFolder, stream: TextIO | None = None, *, plan: str | None = None, later: float = 0.0
    ) -> None:
        """`plan` starts each progress line; without a plan, the training's own output is enough. `later`: see `progress`."""
        self._run = run
        self._plan = plan
        self._later = later
        self._next_progress = 0.0
        self._stream = stream if stream is not None else sys.stderr
        self._line_start = NewlineGuard(run)

    def __call__(self, event: events.Event, state: RunState) -> None:
        line = self._line(event, state)
        if line is None:
            return
        try:
            # The current line may contain a progress bar, or user input on a terminal: keep it and start a new line.
            start = "\n" if self._stream.isatty() else self._line_start.needed_newline(self._stream)
            self._stream.write(f"{start}holdfast: {printable(line, 1000)}\n")
            self._stream.flush()
        except OSError:
            pass  # the terminal is closed; the journal has everything

    def _progress(self, event: events.Epoch, state: RunState) -> str | None:
        last = event.planned is not None and event.epoch == event.planned
        if self._plan is None or (event.at < self._next_progress and not last):
            return None
        self._next_progress = event.at + PROGRESS_S
        return progress(state, self._plan, self._later)

    def _line(self, event: events.Event, state: RunState) -> str | None:
        if isinstance(event, events.Epoch):
            return self._progress(event, state)
        if isinstance(event, events.Replayed):
            return _replayed(event, state)
        if isinstance(event, events.Settings):
            return describe_folder_change(state)
        if isinstance(event, events.AttemptStarted) and event.attempt == 1:
            return f"supervising; run folder: {self._run.path}"
        describe = _DESCRIBE.get(type(event))
        return describe(event) if describe is not None else None


def _attempt_started(event: events.AttemptStarted) -> str:
    resume = event.resume
    if resume is not None and resume.checkpoint is not None:
        return f"attempt {event.attempt} resumes from {resume.checkpoint} (step {resume.step})"
    return f"attempt {event.attempt} starts over: {resume.why if resume is not None else 'there is no checkpoint'}"


def _note(event: events.SupervisorNote) -> str | None:
    if event.code == "kept-awake":
        return None
    if event.code == "not-kept-awake":
        return event.detail
    return f"{event.what}: {event.detail}"


def _finding(event: events.FindingMade) -> str | None:
    finding = event.finding
    return (
        None
        if finding.severity == "note" or finding.updated
        else f"{finding.severity} {finding.rule}: {finding.message}"
    )


def _decision(event: events.DecisionMade) -> str | None:
    decision = event.decision
    if decision.action is Action.STOP:
        return None
    if decision.changes or decision.planned:
        changed = "; ".join(describe_change(change) for change in decision.changes)
        return f"starting the next attempt with {changed}" if changed else "starting the next attempt in a new process"
    wait = f" in {decision.wait_s:.0f} s (Ctrl-C cancels it)" if decision.wait_s else ""
    return f"starting the next attempt{wait}"


def _restored(event: events.Restored) -> str:
    inexact = "" if event.exact else f" (not bit-exact: {event.why})"
    return f"resumed at step {event.step}{inexact}"


def _replayed(event: events.Replayed, state: RunState) -> str | None:
    if event.differs_at is not None or len(state.attempts) < 2:
        return None  # a rule reports the difference
    return describe_repeated_work(*state.attempts[-2:])


def _stage_started(event: events.StageStarted) -> str:
    if event.again:
        return f"stage {event.stage} of {event.of}, {event.name}, resumes"
    weights = f" with {event.weights}" if event.weights else ""
    expects = f" ({event.expects})" if event.expects else ""
    changed = "".join(f"; keeps {change.setting}={change.after} from the previous stage" for change in event.changes)
    return f"stage {event.stage} of {event.of}, {event.name}, starts{weights}{expects}{changed}"


_DESCRIBE: dict[type[events.Event], Callable[[Any], str | None]] = {
    events.AttemptStarted: _attempt_started,
    events.FindingMade: _finding,
    events.DecisionMade: _decision,
    events.Restored: _restored,
    events.SupervisorNote: _note,
    events.StageStarted: _stage_started,
    events.StageEnded: lambda event: (
        f"stage {event.stage}, {event.name}: {event.verdict}; {event.gate_message or event.reason}"
    ),
    events.StageLeftOut: lambda event: f"stage {event.stage}, {event.name}, is skipped: {event.why}",
    events.Signalled: lambda event: (
        f"{event.signal}: {event.action}" if event.signal in ("SIGINT", "SIGTERM") else None
    ),
    events.NoProgress: lambda event: (
        f"no progress for {event.seconds:.0f} s (timeout {event.bound:.0f} s); writing the stack traces of all threads"
    ),
    events.CheckpointsBackedUp: lambda event: (
        f"could not back up: {'; '.join(event.left_out[:3])}" if event.left_out else None
    ),
}

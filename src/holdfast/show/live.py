"""What is said while a run lives: few lines, on stderr, between the training's own."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, TextIO

from holdfast.show.plain import plural, printable
from holdfast.words import events
from holdfast.words.verdicts import Action

if TYPE_CHECKING:
    from holdfast.record.folder import RunFolder

KEEPING_AWAKE = "keeping awake"


class Narrator:
    """A listener that tells the user what matters as it happens."""

    def __init__(self, run: RunFolder, stream: TextIO | None = None) -> None:
        self._run = run
        self._stream = stream if stream is not None else sys.stderr

    def __call__(self, event: events.Event) -> None:
        line = self._line(event)
        if line is None:
            return
        # A progress bar may stand in this line, and its last state is worth keeping.
        start = "\n" if self._stream.isatty() else ""
        try:
            self._stream.write(f"{start}holdfast: {printable(line, 1000)}\n")
            self._stream.flush()
        except OSError:
            pass  # the terminal is gone; everything is in the journal

    def _line(self, event: events.Event) -> str | None:
        if isinstance(event, events.AttemptStarted):
            return f"watching; the record is in {self._run.path}" if event.attempt == 1 else _goes_on(event)
        if isinstance(event, events.FindingMade) and event.finding.severity != "note" and not event.finding.again:
            finding = event.finding
            return f"{finding.severity} {finding.rule}: {finding.message}"
        if isinstance(event, events.DecisionMade) and event.decision.action is not Action.STOP:
            wait = event.decision.wait_s
            return f"another attempt in {wait:.0f} s (Ctrl-C: no)" if wait else "another attempt, at once"
        if isinstance(event, events.Signalled) and event.signal in ("SIGINT", "SIGTERM"):
            return f"{event.signal}: {event.action}"
        if isinstance(event, events.Quiet):
            return f"nothing happened for {event.seconds:.0f} s (bound {event.bound:.0f} s); looking at the stacks"
        if isinstance(event, events.Restored):
            exactly = "" if event.exact else f"; not exactly as it would have been: {event.why}"
            return f"the training has the state of step {event.step}{exactly}"
        if isinstance(event, events.Replayed) and event.differs_at is None:
            return f"what was done again ({plural(event.compared, 'batch', 'batches')}) came out the same, bit for bit"
        if isinstance(event, events.Remark):
            return _remark(event)
        if isinstance(event, events.Vaulted) and event.left_out:
            return f"could not keep safe: {'; '.join(event.left_out[:3])}"
        return None


def _goes_on(event: events.AttemptStarted) -> str:
    resume = event.resume
    if resume is not None and resume.checkpoint is not None:
        return f"attempt {event.attempt} goes on from {resume.checkpoint} (step {resume.step})"
    return f"attempt {event.attempt} starts over: {resume.why if resume is not None else 'there is no checkpoint'}"


def _remark(event: events.Remark) -> str | None:
    if event.what == KEEPING_AWAKE:
        return event.detail if "not kept awake" in event.detail else None
    return f"{event.what}: {event.detail}"

"""The path of every event: journal, run state, rules, listeners."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

from holdfast.schema import events
from holdfast.storage.journal import Entry
from holdfast.storage.redact import Redactor

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from holdfast.diagnosis.engine import Engine
    from holdfast.diagnosis.run_state import RunState
    from holdfast.schema.verdicts import Finding
    from holdfast.storage.journal import JournalWriter

    Listener = Callable[[events.Event, RunState], None]
    """Receives an event and the state of the run at that moment."""

FORWARDED = (events.Epoch, events.ProcessExiting, events.Replayed, events.Restored, events.Settings)
"""Events of the probe that are passed on to listeners."""

MAX_FAULTS = 20
"""Internal errors that are recorded in one run."""


class EventPipeline:
    """Records and evaluates events. The journal and listeners get redacted events; the rules do not, so that a password
    cannot hide the cause of a crash.
    """

    def __init__(
        self,
        journal: JournalWriter,
        engine: Engine,
        listeners: Iterable[Listener],
        clock: Callable[[], float],
        redactor: Redactor | None = None,
    ) -> None:
        self._journal = journal
        self._engine = engine
        self._listeners = list(listeners)
        self._clock = clock
        self._new_findings: deque[Finding] = deque()
        self._faults: set[tuple[str, str]] = set()
        self._redactor = redactor or Redactor()

    @property
    def state(self) -> RunState:
        return self._engine.state

    def now(self) -> float:
        return self._clock()

    def record(self, event: events.AnyEvent) -> None:
        """Record an event of the supervisor."""
        if isinstance(event, events.AttemptStarted):
            self._new_findings.clear()  # those at the end of the previous attempt must not stop this one
        redacted = self._redactor.event(event)
        self._journal.append(redacted)
        self._notify(redacted)
        number = self.state.attempts[-1].number if self.state.attempts else 0
        self._process(Entry(event, number))

    def take_probe_entries(self, entries: Iterable[Entry]) -> None:
        """Process events that the probe has already written."""
        for entry in entries:
            self._process(entry._replace(event=self._redactor.restore(entry.event)))
            if entry.primary and not entry.rank and isinstance(entry.event, FORWARDED):
                self._notify(self._redactor.event(entry.event))

    def _notify(self, event: events.Event) -> None:
        for listener in self._listeners:
            try:
                listener(event, self.state)
            except Exception as error:  # noqa: BLE001 - a failing listener must not cost a training
                self._note_fault(f"notifying {type(listener).__name__}", error)

    def _note_fault(self, doing: str, error: Exception) -> None:
        """Record each fault once, in the journal only: a listener that is notified might fail again."""
        detail = f"{type(error).__name__}: {error}"
        if (doing, detail) not in self._faults and len(self._faults) < MAX_FAULTS:
            self._faults.add((doing, detail))
            self._journal.append(
                self._redactor.event(
                    events.SupervisorNote(
                        at=self._clock(), what=f"an internal error in Holdfast while {doing}", detail=detail
                    )
                )
            )

    def pop_new_findings(self) -> list[Finding]:
        """Return and clear the findings since the last call."""
        findings = list(self._new_findings)
        self._new_findings.clear()
        return findings

    def flush(self) -> str | None:
        """Retry pending journal writes. Return the problem, if there still is one."""
        self._journal.flush()
        return self._journal.trouble

    def sync(self) -> None:
        self._journal.sync()

    def _process(self, entry: Entry) -> None:
        try:
            findings = list(self._engine.take(entry))
        except Exception as error:  # noqa: BLE001 - an event that cannot be processed is skipped
            self._note_fault(f"processing {type(entry.event).__name__}", error)
            return
        for finding in findings:
            self._new_findings.append(finding)
            self.record(events.FindingMade(at=self._clock(), finding=finding))

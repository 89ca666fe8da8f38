"""How a training ended that nobody watched: from the exit code that the user gives, the last words of its log, and whether
all that was planned is there.
"""

from __future__ import annotations

import re
import signal as signals
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from holdfast.observe.endings import evidence_of
from holdfast.words import events
from holdfast.words.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Sequence

KEPT_LINES = 60
"""Last words: a traceback with its message fits."""
_SIGNAL = re.compile(r"\bSIG[A-Z]+\b")
_TRACEBACK = "Traceback (most recent call last)"


@dataclass(frozen=True)
class End:
    code: int | None = None
    signal: str | None = None
    words: list[str] = field(default_factory=list)
    evidence: list[events.Evidence] = field(default_factory=list)
    how: str = ""
    """How this is known; empty where nothing is."""

    @property
    def known(self) -> bool:
        return bool(self.how)

    @property
    def finished(self) -> bool:
        return self.code == 0

    def event(self, at: float, *, first_step: int | None = None, last_step: int = 0) -> events.AttemptEnded:
        return events.AttemptEnded(
            at=at,
            attempt=1,
            code=self.code,
            signal=self.signal,
            first_step=first_step,
            last_step=last_step,
            seconds=at,
            evidence=self.evidence,
            last_words=self.words,
        )


def end_of(exit_code: int | None, words: Sequence[str] = (), *, finished: str = "") -> End:
    """`words` are what the log says after the last sign of training; `finished` says why it is taken to be complete."""
    last = list(words[-KEPT_LINES:])
    if exit_code is not None:
        code, signal = _split(exit_code)
        found = evidence_of(code, signal, last) if code != 0 else []
        return End(code, signal, last if code != 0 else last[-5:], found, f"the exit code {exit_code} that you gave")
    found = evidence_of(None, None, last)
    told = next((item for item in reversed(found) if _SIGNAL.search(item.text)), None)
    if told is not None:
        named = _SIGNAL.search(told.text)
        return End(None, named[0] if named else None, last, found, f"its last words: {told.text}")
    if any(line.startswith(_TRACEBACK) for line in last):
        return End(None, None, last, found, "a traceback in its last words")
    if finished:
        return End(0, None, last[-5:], [], finished)
    return End(None, None, last, found)


def check_exit_code(code: int | None) -> None:
    if code is not None and not -64 <= code <= 255:
        raise UsageError(
            f"{code} is no exit code: they go from 0 to 255, or are minus the number of a signal.",
            next_step="give what `echo $?` printed right after the training",
        )


def _split(code: int) -> tuple[int | None, str | None]:
    """Python's way to tell a signal is its negative number."""
    if code >= 0:
        return code, None
    try:
        return None, signals.Signals(-code).name
    except ValueError:
        return code, None

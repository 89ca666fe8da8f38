"""How a training ended that nobody watched: from the exit code that the user gives, the last words of its log, and whether
all that was planned is there.
"""

from __future__ import annotations

import re
import signal as signals
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from holdfast.process.exit_evidence import collect_exit_evidence
from holdfast.schema import events
from holdfast.schema.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Sequence

KEPT_LINES = 60
"""Last words: a traceback with its message fits."""
_SIGNAL = re.compile(r"\bSIG[A-Z]+\b")
_TRACEBACK = re.compile(r"^(?:\[rank\d+\]: ?)?(?:╭[─ ]*)?Traceback \(most recent call last\)")
_KERNEL = re.compile(r"memorystatus: killing|Out of memory: Kill(?:ed)? process|oom-kill:|oom_reaper: reaped")
_CGROUP = re.compile(r"slurmstepd: error: .*oom[-_ ]kill|Memory cgroup out of memory", re.IGNORECASE)
_TIME_LIMIT = re.compile(r"slurmstepd: error: .*CANCELLED AT .*DUE TO (?:TIME LIMIT|PREEMPTION|NODE FAILURE)")
_INTERRUPTED = ("KeyboardInterrupt", "^C")


@dataclass(frozen=True)
class End:
    code: int | None = None
    signal: str | None = None
    words: list[str] = field(default_factory=list)
    evidence: list[events.Evidence] = field(default_factory=list)
    how: str = ""
    """How this is known; empty where nothing is."""
    stopped_by: str | None = None

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
            stopped_by=self.stopped_by,
            evidence=self.evidence,
            last_words=self.words,
        )


def end_of(exit_code: int | None, words: Sequence[str] = (), *, finished: str = "") -> End:
    """`words` are what the log says after the last sign of training; `finished` says why it is taken to be complete."""
    last = list(words[-KEPT_LINES:])
    if exit_code is not None:
        code, signal = _split(exit_code)
        found = [*collect_exit_evidence(code, signal, last), *_by_system(last)] if code != 0 else []
        return End(code, signal, last if code != 0 else last[-5:], found, f"the exit code {exit_code} that you gave")
    found = [*_by_system(last), *collect_exit_evidence(None, None, last)]
    told = next((item for item in reversed(found) if _SIGNAL.search(item.text)), None)
    if told is not None:
        named = _SIGNAL.search(told.text)
        return End(None, named[0] if named else None, last, found, f"its last words: {told.text}")
    if any(line.strip() in _INTERRUPTED for line in last[-5:]):
        return End(
            None, "SIGINT", last, found, "its last words: it was interrupted from the keyboard", stopped_by="user"
        )
    if any(_TRACEBACK.match(line) for line in last):
        return End(1, None, last, found, "a traceback in its last words")
    if finished:
        return End(0, None, last[-5:], [], finished)
    return End(None, None, last, found)


def _by_system(lines: Sequence[str]) -> list[events.Evidence]:
    """Words of the kernel or of a scheduler that somebody kept in the log."""
    found = []
    for line in lines:
        if _KERNEL.search(line):
            source = "kernel log" if "python" in line.lower() else "kernel log, other"
            found.append(events.Evidence(source, f"{line.strip()[:300]} (SIGKILL)"))
        elif _CGROUP.search(line):
            found.append(events.Evidence("cgroup", f"{line.strip()[:300]} (SIGKILL)"))
        elif _TIME_LIMIT.search(line):
            found.append(events.Evidence("scheduler", f"{line.strip()[:300]} (SIGTERM)"))
    return found[-5:]


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

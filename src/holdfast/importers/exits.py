"""How an unsupervised training ended: inferred from the exit code that the user passes, the last lines of its log, and whether
everything that was planned is there.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

from holdfast.process.exit_evidence import collect_exit_evidence
from holdfast.schema import events
from holdfast.schema.errors import UsageError
from holdfast.schema.exits import find_signal, starts_traceback

if TYPE_CHECKING:
    from collections.abc import Sequence

MAX_LAST_LINES = 60
"""Lines of the end of a log to keep: enough for a traceback with its message."""
_SIGNAL = re.compile(r"\bSIG[A-Z]+\b")
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
    basis: Literal["exit code", "output", "planned work"] | None = None
    """What this is known from: the user's exit code, the training's own output, or that all planned work is recorded."""
    how: str = ""
    """The same as a phrase for messages."""
    stopped_by: events.StopCause | None = None

    @property
    def is_known(self) -> bool:
        return self.basis is not None

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
            last_lines=self.words,
        )


def infer_end(exit_code: int | None, words: Sequence[str] = (), *, finished: str = "", complete: str = "") -> End:
    """Infer how a training ended. `words` are the log lines after the last progress. `finished` is the output that says that
    it has finished; `complete` is the record that contains all planned work, from which the same is concluded.
    """
    last = list(words[-MAX_LAST_LINES:])
    if exit_code is not None:
        code, signal = _split_exit_code(exit_code)
        found = [*collect_exit_evidence(code, signal, last), *_find_system_messages(last)] if code != 0 else []
        kept = last if code != 0 else last[-5:]
        return End(code, signal, kept, found, "exit code", f"the exit code {exit_code} that you passed")
    found = [*_find_system_messages(last), *collect_exit_evidence(None, None, last)]
    killed_by = next((item for item in reversed(found) if _SIGNAL.search(item.text)), None)
    if killed_by is not None:
        match = _SIGNAL.search(killed_by.text)
        return End(None, match[0] if match else None, last, found, "output", f"its last output: {killed_by.text}")
    if any(line.strip() in _INTERRUPTED for line in last[-5:]):
        how = "its last output: it was interrupted from the keyboard"
        return End(None, "SIGINT", last, found, "output", how, stopped_by="user")
    if any(starts_traceback(line) for line in last):
        return End(1, None, last, found, "output", "a traceback in its last output")
    if finished:
        return End(0, None, last[-5:], [], "output", finished)
    if complete:
        return End(0, None, last[-5:], [], "planned work", f"{complete} (the exit code is not recorded)")
    return End(None, None, last, found)


def _find_system_messages(lines: Sequence[str]) -> list[events.Evidence]:
    """Return messages of the kernel or a scheduler that are in the log."""
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
            f"{code} is not an exit code: exit codes are 0 to 255, or the negative number of a signal.",
            next_step="pass what `echo $?` printed right after the training",
        )


def _split_exit_code(code: int) -> tuple[int | None, str | None]:
    """Split a code into exit code and signal name: Python reports a signal as its negative number."""
    name = find_signal(-code) if code < 0 else None
    return (None, name) if name is not None else (code, None)

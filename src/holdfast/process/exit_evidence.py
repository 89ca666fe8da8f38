"""Evidence of how a process exited, collected for `AttemptEnded.evidence`. The rules decide which of it is the cause.

Sources in addition to those of `holdfast.machine.base`:

    signal        the signal that killed the process itself
    exit code     128 + n: how shells and some launchers report that their child was killed by signal n
    torchrun      a line of a launcher about one of its workers
    data loader   a line of PyTorch about one of its DataLoader workers
    last output   what a shell or the interpreter printed about a signal
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from holdfast.schema.events import Evidence
from holdfast.schema.exits import TRACEBACK, find_signal, signal_name

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

_MAX_SCANNED_LINES = 200
"""Lines of output that are searched, counted from the end."""
_MIN_KEPT_LINES = 40
_MAX_LINES = 12

_LAUNCHER = (
    re.compile(r"Signal (?P<number>\d+) \((?P<name>SIG\w+)\) received by PID (?P<pid>\d+)"),
    re.compile(r"failed \(exitcode: -(?P<number>\d+)\) local_rank: \d+ \(pid: (?P<pid>\d+)\)"),
    re.compile(r"exitcode\s*: -(?P<number>\d+) \(pid: (?P<pid>\d+)\)"),
    re.compile(r"process \d+ terminated with signal (?P<name>SIG\w+)"),
)
_LOADER = re.compile(r"DataLoader worker \(pid\(?s?\)?:? [\d, ]+\) (?:is killed by signal: .+|exited unexpectedly.*)")
_LOADER_SIGNAL = re.compile(r"is killed by signal: (?P<words>[\w ]+)")


def last_lines(lines: Sequence[str]) -> list[str]:
    """Return the last 40 lines, or more if a traceback that ends in them starts earlier."""
    recent = list(lines[-_MAX_SCANNED_LINES:])
    tracebacks = [n for n, line in enumerate(recent) if TRACEBACK in line]
    return recent[min(tracebacks[-1] if tracebacks else len(recent), max(0, len(recent) - _MIN_KEPT_LINES)) :]


_SIGNAL_OF_WORDS = {
    "killed": "SIGKILL",
    "terminated": "SIGTERM",
    "abort": "SIGABRT",
    "aborted": "SIGABRT",
    "abort trap": "SIGABRT",
    "segmentation fault": "SIGSEGV",
    "bus error": "SIGBUS",
    "illegal instruction": "SIGILL",
    "illegal hardware instruction": "SIGILL",
    "floating point exception": "SIGFPE",
    "trace trap": "SIGTRAP",
}
_ANY_WORDS = "|".join(sorted(_SIGNAL_OF_WORDS, key=len, reverse=True))
_SHELL = (
    # zsh: killed     python train.py
    re.compile(rf"^zsh: (?P<words>{_ANY_WORDS})(?:\s|$)", re.IGNORECASE),
    # Killed: 9   Abort trap: 6   Killed   Segmentation fault (core dumped)
    re.compile(rf"^(?P<words>{_ANY_WORDS})(?:: \d+)?(?: \(core dumped\))?$", re.IGNORECASE),
    # train.sh: line 3: 4242 Killed                  python train.py
    re.compile(rf"^\S*sh: line \d+:\s+\d+ (?P<words>{_ANY_WORDS})(?:: \d+)?(?:\s|$)", re.IGNORECASE),
    re.compile(rf"^\S+\.sh: line \d+:\s+\d+ (?P<words>{_ANY_WORDS})(?:: \d+)?(?:\s|$)", re.IGNORECASE),
    # Fatal Python error: Segmentation fault
    re.compile(rf"^Fatal Python error: (?P<words>{_ANY_WORDS})\b", re.IGNORECASE),
)


def collect_exit_evidence(
    code: int | None, signal: str | None, last_lines: Sequence[str] = (), evidence: Iterable[Evidence] = ()
) -> list[Evidence]:
    """Return all evidence of an exit: the signal or exit code, the machine's evidence, and lines of the output."""
    own_signal = signal or _signal_of_negative(code)
    result = [Evidence("signal", f"the process was killed by {own_signal}")] if own_signal else []
    if own_signal is None and (passed_on := signal_from_exit_code(code)):
        result.append(
            Evidence("exit code", f"{code} = 128 + {(code or 0) - 128}: {passed_on}, passed on by a shell or launcher")
        )
    result.extend(evidence)
    lines = [line.strip() for line in last_lines[-_MAX_SCANNED_LINES:]]
    for source, parse in (
        ("torchrun", _parse_launcher_line),
        ("data loader", _parse_loader_line),
        ("last output", _parse_shell_line),
    ):
        result.extend(_collect_lines(source, parse, lines))
    return result


def signal_from_exit_code(code: int | None) -> str | None:
    """Map 137 to SIGKILL, 134 to SIGABRT, 139 to SIGSEGV; None if the code does not stand for a signal."""
    return None if code is None else find_signal(code - 128)


def _signal_of_negative(code: int | None) -> str | None:
    return None if code is None or code >= 0 else signal_name(-code)


def _collect_lines(source: str, parse: Callable[[str], str | None], lines: Iterable[str]) -> list[Evidence]:
    by_line: dict[str, Evidence] = {}
    for line in lines:
        name = parse(line)
        if name is not None:
            by_line.setdefault(line, Evidence(source, f"{line} ({name})" if name and name not in line else line))
    return list(by_line.values())[:_MAX_LINES]


def _parse_launcher_line(line: str) -> str | None:
    for pattern in _LAUNCHER:
        match = pattern.search(line)
        if match:
            name = match.groupdict().get("name")
            return name or signal_name(int(match["number"]))
    return None


def _parse_loader_line(line: str) -> str | None:
    if not _LOADER.search(line):
        return None
    words = _LOADER_SIGNAL.search(line)
    return _SIGNAL_OF_WORDS.get(words["words"].strip().lower(), "") if words else ""


def _parse_shell_line(line: str) -> str | None:
    first = next((match for pattern in _SHELL if (match := pattern.search(line))), None)
    return None if first is None else _SIGNAL_OF_WORDS[first["words"].lower()]

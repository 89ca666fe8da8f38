"""The facts of an end, gathered for `AttemptEnded.evidence`. Which of them is the cause, rules judge.

Sources added to those of `holdfast.machine.base`:

    signal        the process itself was ended by it
    exit code     128 + n: how a shell, and some launchers, pass on that their child was ended by signal n
    torchrun      a launcher's line about one of its workers
    data loader   PyTorch's line about one of its loader's workers
    last words    what a shell or the interpreter printed of a signal
"""

from __future__ import annotations

import re
import signal as signals
from typing import TYPE_CHECKING

from holdfast.schema.events import Evidence

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

_LOOKED_AT = 200
"""Lines of last words, from the end."""
_KEPT = 40
_TRACEBACK = "Traceback (most recent call last)"
_MAX_LINES = 12

_LAUNCHER = (
    re.compile(r"Signal (?P<number>\d+) \((?P<name>SIG\w+)\) received by PID (?P<pid>\d+)"),
    re.compile(r"failed \(exitcode: -(?P<number>\d+)\) local_rank: \d+ \(pid: (?P<pid>\d+)\)"),
    re.compile(r"exitcode\s*: -(?P<number>\d+) \(pid: (?P<pid>\d+)\)"),
    re.compile(r"process \d+ terminated with signal (?P<name>SIG\w+)"),
)
_LOADER = re.compile(r"DataLoader worker \(pid\(?s?\)?:? [\d, ]+\) (?:is killed by signal: .+|exited unexpectedly.*)")
_LOADER_SIGNAL = re.compile(r"is killed by signal: (?P<words>[\w ]+)")


def last_words(lines: Sequence[str]) -> list[str]:
    """The last forty lines, and as many more as the traceback has that ends in them."""
    shown = list(lines[-_LOOKED_AT:])
    begins = [n for n, line in enumerate(shown) if _TRACEBACK in line]
    return shown[min(begins[-1] if begins else len(shown), max(0, len(shown) - _KEPT)) :]


_WORDS = {
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
_ANY_WORDS = "|".join(sorted(_WORDS, key=len, reverse=True))
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


def evidence_of(
    code: int | None, signal: str | None, last_words: Sequence[str] = (), evidence: Iterable[Evidence] = ()
) -> list[Evidence]:
    """All that is known of an end: the signal or the exit code, the machine's evidence, and what lines of output say."""
    own = signal or _signal_of_negative(code)
    found = [Evidence("signal", f"the process was ended by {own}")] if own else []
    if own is None and (passed_on := signal_passed_on(code)):
        found.append(
            Evidence("exit code", f"{code} = 128 + {(code or 0) - 128}: passed on by a shell or launcher, {passed_on}")
        )
    found.extend(evidence)
    lines = [line.strip() for line in last_words[-_LOOKED_AT:]]
    for source, said in (("torchrun", _by_launcher), ("data loader", _by_loader), ("last words", _by_shell)):
        found.extend(_told(source, said, lines))
    return found


def signal_passed_on(code: int | None) -> str | None:
    """137 -> SIGKILL, 134 -> SIGABRT, 139 -> SIGSEGV; None where the code means no signal."""
    return None if code is None else _signal_name(code - 128)


def _signal_of_negative(code: int | None) -> str | None:
    return None if code is None or code >= 0 else _signal_name(-code) or f"signal {-code}"


def _signal_name(number: int) -> str | None:
    try:
        return signals.Signals(number).name
    except ValueError:
        return None


def _told(source: str, said: Callable[[str], str | None], lines: Iterable[str]) -> list[Evidence]:
    told: dict[str, Evidence] = {}
    for line in lines:
        name = said(line)
        if name is not None:
            told.setdefault(line, Evidence(source, f"{line} ({name})" if name and name not in line else line))
    return list(told.values())[:_MAX_LINES]


def _by_launcher(line: str) -> str | None:
    for pattern in _LAUNCHER:
        found = pattern.search(line)
        if found:
            named = found.groupdict().get("name")
            return named or _signal_name(int(found["number"])) or f"signal {found['number']}"
    return None


def _by_loader(line: str) -> str | None:
    if not _LOADER.search(line):
        return None
    words = _LOADER_SIGNAL.search(line)
    return _WORDS.get(words["words"].strip().lower(), "") if words else ""


def _by_shell(line: str) -> str | None:
    found = next((match for pattern in _SHELL if (match := pattern.search(line))), None)
    return None if found is None else _WORDS[found["words"].lower()]

"""What the rules about ends have in common: how an attempt died, read from its last event."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from holdfast.diagnosis.run_state import AttemptState, RunState
    from holdfast.schema.events import AttemptEnded

_EXCEPTION = re.compile(
    r"^(?:[A-Za-z_][\w.]*\.)?([A-Z]\w*(?:Error|Exception|Interrupt|Exit|Warning|Failure|Timeout|Iteration))\b(?::.*)?$"
)
_RAISED = re.compile(r"^[A-Za-z_][\w.]*(?::.*)?$")
_LIBRARY = re.compile(
    r"/(?:site|dist)-packages/|/lib(?:64)?/python\d|<frozen |<string>|/holdfast/probe/|/holdfast_probe/|"
    r"/bin/[^/\".]+\", line \d+, in <module>"
)
"""Frames of libraries, of what Holdfast puts around calls, and of the stubs that start a console script."""

_TRACEBACK = re.compile(r"^(?:╭[─ ]*)?Traceback \(most recent call last\)")
_CHAINED = ("During handling of the above exception", "The above exception was the direct cause")
_THREAD = "Exception in thread"
_LAUNCHER = "ChildFailedError"
_RANK = re.compile(r"^\[rank\d+\]: ?")
"""What torch puts before every line of a traceback under torchrun."""
_RAISES_ON_ABORT = (None, "SIGABRT")
"""An exception of C++ that nobody catches ends in SIGABRT; with any other signal an older traceback explains nothing."""

_SIGNAL = re.compile(r"\bSIG[A-Z]+\b")
_PASSED_ON = {134: "SIGABRT", 137: "SIGKILL", 139: "SIGSEGV", 143: "SIGTERM"}
"""128 + n, where n is the same on every system."""


def death(state: RunState) -> AttemptEnded | None:
    """The end of the newest attempt, where it was neither a success nor somebody's wish."""
    ended = state.attempt.ended
    if ended is None or ended.code == 0 or ended.stopped_by is not None:
        return None
    return ended


def killed_by(ended: AttemptEnded) -> str | None:
    """The signal that ended it, also where a shell or a launcher only passed it on."""
    if ended.signal is not None:
        return ended.signal
    # The machine that saw it has named the signal: numbers differ between systems, and torchrun exits with 1.
    told = (_SIGNAL.search(item.text) for item in ended.evidence if item.source in ("exit code", "torchrun"))
    return next((match[0] for match in told if match), _PASSED_ON.get(ended.code or 0))


def where(attempt: AttemptState) -> str:
    """For a sentence: at which step, in which epoch."""
    if not attempt.steps:
        if attempt.epoch:
            return f"after epoch {attempt.epoch}"
        # A record of somebody else's has no process: that it shows no step does not mean that there was none.
        return "before the first step" if attempt.started.pid else "where its record ends"
    done = f", {attempt.epoch} epoch{'s' if attempt.epoch != 1 else ''} done" if attempt.epoch else ""
    return f"after step {attempt.last_step}{done}"


def exception_line(ended: AttemptEnded) -> str | None:
    """The line that names the exception, from the last words."""
    words = exception_words(ended)
    if not words or not _TRACEBACK.match(words[0]):
        return None
    words = _without_the_launchers(words)
    frames = [n for n, line in enumerate(words) if line.startswith('  File "')]
    below = words[frames[-1] + 1 :] if frames else []
    # Any class can be raised; below the last frame its name stands at the very left, before lines of its message.
    named = next((line for line in below if _RAISED.match(line)), None)
    if named is not None:
        return named.strip()
    for line in reversed(words):
        if _EXCEPTION.match(line.strip()):
            return line.strip()
    return next((line.strip() for line in reversed(words) if line.strip()), None)


def frames_of(ended: AttemptEnded) -> list[str]:
    """`File "train.py", line 31, in main` for each frame of the exception that ended it, the innermost last."""
    words = _without_the_launchers(exception_words(ended))
    return [line.strip() for line in words if line.strip().startswith("File ")]


def _without_the_launchers(words: list[str]) -> list[str]:
    """A launcher's own traceback, which comes last, only says that a rank failed."""
    begins = [n for n, line in enumerate(words) if _TRACEBACK.match(line)]
    if len(begins) > 1 and any(_LAUNCHER in line for line in words[begins[-1] :]):
        return words[: begins[-1]]
    return words


def own_frame(frames: Sequence[str]) -> str | None:
    """The innermost frame that is not a library's: what a person can mend."""
    return next((frame for frame in reversed(frames) if not _LIBRARY.search(frame)), None)


def exception_words(ended: AttemptEnded) -> list[str]:
    """The last words from the traceback on that ended it; all of them where there is none.

    Exceptions that led to one another belong together, and so do those of ranks and of the launcher that tells of them. An
    earlier traceback that somebody caught and printed does not.
    """
    lines = _without_threads([_RANK.sub("", line) for line in ended.last_words])
    begins = [n for n, line in enumerate(lines) if _TRACEBACK.match(line)]
    if not begins:
        return lines
    begin = begins.pop()
    by_launcher = any(_LAUNCHER in line or "ProcessRaisedException" in line for line in lines[begin:])
    while begins and (by_launcher or any(line.startswith(_CHAINED) for line in lines[begins[-1] : begin])):
        begin = begins.pop()
    return lines[begin:]


def _without_threads(lines: list[str]) -> list[str]:
    """A loader's thread that finds its workers gone raises too; that is what came of the end, and not what led to it."""
    kept: list[str] = []
    in_thread = False
    for before, line in zip(["", *lines], lines, strict=False):
        begins = bool(_TRACEBACK.match(line)) and not before.startswith(_THREAD) and not before.startswith(_CHAINED)
        in_thread = line.startswith(_THREAD) or (in_thread and not begins)
        if not in_thread:
            kept.append(line)
    return kept if any(_TRACEBACK.match(line) for line in kept) else lines


def raised(ended: AttemptEnded, *patterns: str) -> str | None:
    """The newest line of the exception that ended it which matches one of the patterns."""
    if killed_by(ended) not in _RAISES_ON_ABORT:
        return None
    return _newest(exception_words(ended), patterns)


def said(ended: AttemptEnded, *patterns: str) -> str | None:
    """The newest of the last words that matches one of the patterns."""
    return _newest(ended.last_words, patterns)


def _newest(lines: Sequence[str], patterns: Sequence[str]) -> str | None:
    for line in reversed(lines):
        if any(re.search(pattern, line) for pattern in patterns):
            return line.strip()
    return None


def quoted(ended: AttemptEnded, most: int = 3) -> list[str]:
    """The OS's words, as evidence."""
    return [f"{item.source}: {item.text}" for item in ended.evidence[:most]]

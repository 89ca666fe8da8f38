"""How an attempt ended, read from its last event. Shared by the rules about failures."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from holdfast.schema.exits import starts_traceback

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
"""Frames of libraries, of Holdfast's wrappers, and of the stubs that start a console script."""

_CHAINED = ("During handling of the above exception", "The above exception was the direct cause")
_THREAD = "Exception in thread"
_LAUNCHER = "ChildFailedError"
_RANK = re.compile(r"^\[rank\d+\]: ?")
"""The prefix that torch adds to every line of a traceback under torchrun."""
_RAISES_ON_ABORT = (None, "SIGABRT")
"""An uncaught C++ exception ends in SIGABRT. With any other signal, an older traceback explains nothing."""

_SIGNAL = re.compile(r"\bSIG[A-Z]+\b")
_PASSED_ON = {134: "SIGABRT", 137: "SIGKILL", 139: "SIGSEGV", 143: "SIGTERM"}
"""128 + n, for signals whose number n is the same on every system."""


def find_failure(state: RunState) -> AttemptEnded | None:
    """Return the end of the newest attempt if it failed, that is, if it neither succeeded nor was stopped on request."""
    ended = state.attempt.ended
    if ended is None or ended.code == 0 or ended.stopped_by is not None:
        return None
    return ended


def killed_by(ended: AttemptEnded) -> str | None:
    """Return the signal that killed the process, even if a shell or a launcher only passed it on."""
    if ended.signal is not None:
        return ended.signal
    # The evidence has the name of the signal: numbers differ between systems, and torchrun exits with 1.
    matches = (_SIGNAL.search(item.text) for item in ended.evidence if item.source in ("exit code", "torchrun"))
    return next((match[0] for match in matches if match), _PASSED_ON.get(ended.code or 0))


def describe_position(attempt: AttemptState) -> str:
    """Return a phrase that states the step and the epoch that an attempt reached, for use in a sentence."""
    if not attempt.steps:
        if attempt.epoch:
            return f"after epoch {attempt.epoch}"
        # An imported log has no process id. It may show no steps although some were done.
        return "before the first step" if attempt.started.pid else "at an unknown step"
    done = f", {attempt.epoch} epoch{'s' if attempt.epoch != 1 else ''} done" if attempt.epoch else ""
    return f"after step {attempt.last_step}{done}"


def exception_line(ended: AttemptEnded) -> str | None:
    """Return the line that names the exception, from the last lines of output."""
    words = exception_words(ended)
    if not words or not starts_traceback(words[0]):
        return None
    words = _remove_launcher_traceback(words)
    frames = [n for n, line in enumerate(words) if line.startswith('  File "')]
    below = words[frames[-1] + 1 :] if frames else []
    # Any class can be raised. Below the last frame, its name starts in the first column, before the lines of its message.
    named = next((line for line in below if _RAISED.match(line)), None)
    if named is not None:
        return named.strip()
    for line in reversed(words):
        if _EXCEPTION.match(line.strip()):
            return line.strip()
    return next((line.strip() for line in reversed(words) if line.strip()), None)


def frames_of(ended: AttemptEnded) -> list[str]:
    """Return the frames of the exception that ended the attempt, innermost last: `File "train.py", line 31, in main`."""
    words = _remove_launcher_traceback(exception_words(ended))
    return [line.strip() for line in words if line.strip().startswith("File ")]


def _remove_launcher_traceback(words: list[str]) -> list[str]:
    """Remove the launcher's own traceback. It comes last and only states that a rank failed."""
    begins = [n for n, line in enumerate(words) if starts_traceback(line)]
    if len(begins) > 1 and any(_LAUNCHER in line for line in words[begins[-1] :]):
        return words[: begins[-1]]
    return words


def own_frame(frames: Sequence[str]) -> str | None:
    """Return the innermost frame outside of libraries: the code that the user can fix."""
    return next((frame for frame in reversed(frames) if not _LIBRARY.search(frame)), None)


def exception_words(ended: AttemptEnded) -> list[str]:
    """Return the last lines of output, from the traceback that ended the attempt. Without a traceback, return all of them.

    Chained exceptions belong together, and so do those of the ranks and of the launcher that reports them. An earlier
    traceback that was caught and printed does not.
    """
    lines = _remove_thread_tracebacks([_RANK.sub("", line) for line in ended.last_lines])
    begins = [n for n, line in enumerate(lines) if starts_traceback(line)]
    if not begins:
        return lines
    begin = begins.pop()
    by_launcher = any(_LAUNCHER in line or "ProcessRaisedException" in line for line in lines[begin:])
    while begins and (by_launcher or any(line.startswith(_CHAINED) for line in lines[begins[-1] : begin])):
        begin = begins.pop()
    return lines[begin:]


def _remove_thread_tracebacks(lines: list[str]) -> list[str]:
    """Remove tracebacks of threads. A DataLoader thread whose workers are gone raises too: that is an effect, not a cause."""
    kept: list[str] = []
    in_thread = False
    for before, line in zip(["", *lines], lines, strict=False):
        begins = starts_traceback(line) and not before.startswith(_THREAD) and not before.startswith(_CHAINED)
        in_thread = line.startswith(_THREAD) or (in_thread and not begins)
        if not in_thread:
            kept.append(line)
    return kept if any(starts_traceback(line) for line in kept) else lines


def match_exception(ended: AttemptEnded, *patterns: str) -> str | None:
    """Return the newest line of the exception that ended the attempt that matches one of the patterns."""
    if killed_by(ended) not in _RAISES_ON_ABORT:
        return None
    return _find_newest(exception_words(ended), patterns)


def match_output(ended: AttemptEnded, *patterns: str) -> str | None:
    """Return the newest of the last lines of output that matches one of the patterns."""
    return _find_newest(ended.last_lines, patterns)


def _find_newest(lines: Sequence[str], patterns: Sequence[str]) -> str | None:
    for line in reversed(lines):
        if any(re.search(pattern, line) for pattern in patterns):
            return line.strip()
    return None


def quote_evidence(ended: AttemptEnded, most: int = 3) -> list[str]:
    """Return what the operating system reported about the end, as evidence."""
    return [f"{item.source}: {item.text}" for item in ended.evidence[:most]]

"""What the rules about ends have in common: how an attempt died, read from its last event."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from holdfast.judge.picture import AttemptPicture, Picture
    from holdfast.words.events import AttemptEnded

_EXCEPTION = re.compile(
    r"^(?:[A-Za-z_][\w.]*\.)?([A-Z]\w*(?:Error|Exception|Interrupt|Exit|Warning|Failure|Timeout|Iteration))\b(?::.*)?$"
)

_SIGNAL = re.compile(r"\bSIG[A-Z]+\b")
_PASSED_ON = {134: "SIGABRT", 137: "SIGKILL", 139: "SIGSEGV", 143: "SIGTERM"}
"""128 + n, where n is the same on every system."""


def death(picture: Picture) -> AttemptEnded | None:
    """The end of the newest attempt, where it was neither a success nor somebody's wish."""
    ended = picture.attempt.ended
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


def where(attempt: AttemptPicture) -> str:
    """For a sentence: at which step, in which epoch."""
    if not attempt.steps:
        return "before the first step"
    done = f", {attempt.epoch} epoch{'s' if attempt.epoch != 1 else ''} done" if attempt.epoch else ""
    return f"after step {attempt.last_step}{done}"


def exception_line(ended: AttemptEnded) -> str | None:
    """The line that names the exception, from the last words."""
    if not any(line.startswith("Traceback (most recent call last)") for line in ended.last_words):
        return None
    for line in reversed(ended.last_words):
        if _EXCEPTION.match(line.strip()):
            return line.strip()
    return next((line.strip() for line in reversed(ended.last_words) if line.strip()), None)


def said(ended: AttemptEnded, *patterns: str) -> str | None:
    """The newest of the last words that matches one of the patterns."""
    for line in reversed(ended.last_words):
        if any(re.search(pattern, line) for pattern in patterns):
            return line.strip()
    return None


def quoted(ended: AttemptEnded, most: int = 3) -> list[str]:
    """The OS's words, as evidence."""
    return [f"{item.source}: {item.text}" for item in ended.evidence[:most]]

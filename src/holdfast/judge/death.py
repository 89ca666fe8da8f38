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
_PASSED_ON = {
    128 + number: name
    for number, name in (
        (1, "SIGHUP"),
        (4, "SIGILL"),
        (6, "SIGABRT"),
        (7, "SIGBUS"),
        (8, "SIGFPE"),
        (9, "SIGKILL"),
        (11, "SIGSEGV"),
        (15, "SIGTERM"),
    )
}


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
    passed_on = _PASSED_ON.get(ended.code or 0)
    if passed_on is not None:
        return passed_on
    # torchrun exits with 1 when a rank was killed, and says so on stderr only.
    told = (_SIGNAL.search(item.text) for item in ended.evidence if item.source == "torchrun")
    return next((match[0] for match in told if match), None)


def where(attempt: AttemptPicture) -> str:
    """For a sentence: at which step, in which epoch."""
    if not attempt.steps:
        return "before the first step"
    epoch = f" (epoch {attempt.epoch + 1})" if attempt.epoch is not None else ""
    return f"after step {attempt.last_step}{epoch}"


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

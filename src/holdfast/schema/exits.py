"""How a process ended: names of signals, the first line of a traceback, and the end in words."""

from __future__ import annotations

import re
import signal as signals

TRACEBACK = "Traceback (most recent call last)"
_FIRST_LINE = re.compile(r"(?:\[rank\d+\]: ?)?(?:╭[─ ]*)?" + re.escape(TRACEBACK))


def starts_traceback(line: str) -> bool:
    """Return whether a traceback begins in this line. Torchrun puts the rank before it, rich a frame around it."""
    return _FIRST_LINE.match(line) is not None


def signal_name(number: int) -> str:
    """Return the name of a signal, such as "SIGKILL"; a real-time signal has only a number."""
    known = find_signal(number)
    return known if known is not None else f"signal {number}"


def find_signal(number: int) -> str | None:
    """Return the name of a signal; None if there is none with this number."""
    try:
        return signals.Signals(number).name
    except ValueError:
        return None


def describe_exit(code: int | None, signal: str | None) -> str:
    """Return how a process ended, to follow its name in a sentence."""
    if signal is not None:
        return f"was killed by {signal}"
    if code is None:
        return "ended in a way that was not recorded"
    return f"exited with code {code}" if code else "finished"

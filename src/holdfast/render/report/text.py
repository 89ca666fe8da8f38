"""Other people's text made safe to show, and numbers as people read them.

Names, messages and log lines come from somebody's training and may hold anything: each passes through `clean` on its way
into the report, and is escaped once more where it is written.
"""

from __future__ import annotations

import math
import re
from datetime import datetime, timezone

from holdfast.render.text import printable

_DIRECTIONS = re.compile("[\u200b-\u200f\u2028-\u202e\u2060-\u2069\ufeff]")
"""Invisible characters that turn text around or hide it."""

NOTHING = "–"  # noqa: RUF001 - what stands where there is no value


def clean(text: str, most: int = 300) -> str:
    """One line of plain text that is at most so long."""
    return clean_line(text, most).lstrip()


def clean_line(text: str, most: int = 300) -> str:
    """The same with its indentation: a line of a log."""
    # What cannot be encoded (half a character from a torn log) must not cost the report.
    whole = text[: most * 4].encode("utf-8", "replace").decode("utf-8")
    return printable(_DIRECTIONS.sub("", whole), most).rstrip()


def number(value: float | None, digits: int = 4) -> str:
    if value is None:
        return NOTHING
    if not math.isfinite(value):
        return "NaN" if math.isnan(value) else "∞" if value > 0 else "-∞"
    if value and (abs(value) >= 1e6 or abs(value) < 1e-4):
        return f"{value:.{digits - 1}g}".replace("e-0", "e-").replace("e+0", "e").replace("e+", "e")
    return f"{value:.0f}" if abs(value) >= 10**digits else f"{value:.{digits}g}"


def count(value: float) -> str:
    """A whole number, written as in the rules' own sentences, so that it can be searched for."""
    return f"{round(value)}"


def short_count(value: float) -> str:
    """For an axis: 1500 -> 1.5k."""
    for size, letter in ((1e9, "G"), (1e6, "M"), (1e4, "k")):
        if abs(value) >= size:
            return f"{value / (1e3 if letter == 'k' else size):.4g}{letter}"
    return f"{value:.6g}"


def moment(at: float) -> str:
    """In UTC, so that a report says the same wherever it is made; nothing where the log had no clock."""
    if at < 1e8:
        return ""
    try:
        return datetime.fromtimestamp(at, timezone.utc).strftime("%Y-%m-%d %H:%M UTC")
    except (ValueError, OverflowError, OSError):
        return ""


def percent(part: float) -> str:
    """A share that is never rounded to all or nothing unless it is."""
    if 0 < part < 0.01:
        return "< 1%"
    return f"{min(99, round(100 * part)) if part < 1 else 100}%"


_TICKED = re.compile(r"`([^`]+)`")


def pieces(words: str) -> list[tuple[str, bool]]:
    """Text in its parts, each with whether it stands between backticks, as code does in rules' own sentences."""
    parts = _TICKED.split(words)
    return [(part, bool(n % 2)) for n, part in enumerate(parts) if part]

"""Untrusted text made safe to show, and numbers formatted for people.

Names, messages and log lines come from the training and can contain anything. Each goes through `clean` on its way
into the report, and is escaped again when it is written.
"""

from __future__ import annotations

import math
import re
from datetime import datetime, timezone

from holdfast.render.text import printable

_DIRECTIONS = re.compile("[\u200b-\u200f\u2028-\u202e\u2060-\u2069\ufeff]")
"""Invisible characters that change the direction of text or hide it."""

NOTHING = "–"  # noqa: RUF001 - shown if there is no value


def clean(text: str, max_length: int = 300) -> str:
    """Return one line of plain text, cut at `max_length`."""
    return clean_line(text, max_length).lstrip()


def clean_line(text: str, max_length: int = 300) -> str:
    """Return one line with its indentation: a line of a log."""
    # Text that cannot be encoded (half a character from a truncated log) must not break the report.
    valid = text[: max_length * 4].encode("utf-8", "replace").decode("utf-8")
    return printable(_DIRECTIONS.sub("", valid), max_length).rstrip()


def number(value: float | None, digits: int = 4) -> str:
    if value is None:
        return NOTHING
    if not math.isfinite(value):
        return "NaN" if math.isnan(value) else "∞" if value > 0 else "-∞"
    if value and (abs(value) >= 1e6 or abs(value) < 1e-4):
        return f"{value:.{digits - 1}g}".replace("e-0", "e-").replace("e+0", "e").replace("e+", "e")
    return f"{value:.0f}" if abs(value) >= 10**digits else f"{value:.{digits}g}"


def count(value: float) -> str:
    """Format a whole number as the rules' messages do, so that it can be searched for."""
    return f"{round(value)}"


def short_count(value: float) -> str:
    """For an axis: 1500 -> 1.5k."""
    for size, letter in ((1e9, "G"), (1e6, "M"), (1e4, "k")):
        if abs(value) >= size:
            return f"{value / (1e3 if letter == 'k' else size):.4g}{letter}"
    return f"{value:.6g}"


def moment(at: float) -> str:
    """Format a time in UTC, so that a report does not depend on the machine. Empty if the log had no times."""
    if at < 1e8:
        return ""
    try:
        return datetime.fromtimestamp(at, timezone.utc).strftime("%Y-%m-%d %H:%M UTC")
    except (ValueError, OverflowError, OSError):
        return ""


def percent(part: float) -> str:
    """Format a share. It is rounded to 0% or 100% only if it is exactly that."""
    if 0 < part < 0.01:
        return "< 1%"
    return f"{min(99, round(100 * part)) if part < 1 else 100}%"


_CODE = re.compile(r"`([^`]+)`")


def split_code(words: str) -> list[tuple[str, bool]]:
    """Split text into parts, each with a flag that is True for code between backticks."""
    parts = _CODE.split(words)
    return [(part, bool(n % 2)) for n, part in enumerate(parts) if part]

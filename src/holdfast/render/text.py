"""Text of other people's programs, made safe and short for showing."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from holdfast.probe.holdfast_probe.redact import readable
from holdfast.schema.json_text import UNSAFE

if TYPE_CHECKING:
    from collections.abc import Mapping

    from holdfast.schema.verdicts import Change

_ESCAPES = re.compile(r"\x1b\[[0-?]*[ -/]*[@-~]|\x1b\][^\x07\x1b]*(?:\x07|\x1b\\)|\x1b.")
_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f]")


def printable(text: str, most: int = 400) -> str:
    """One line without escape sequences, control characters or such as turn the direction of text; cut where it is too long."""
    text = readable(text[: 16 * most])  # what is cut off anyway is not worth searching
    line = UNSAFE.sub("", _CONTROL.sub("", _ESCAPES.sub("", text))).replace("\n", " ").replace("\t", " ")
    return line if len(line) <= most else line[: most - 1] + "…"


def duration(seconds: float) -> str:
    if seconds < 60:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes:02d} min" if hours else f"{minutes} min {rest:02d} s"


def plural(count: int, thing: str, things: str | None = None) -> str:
    return f"{count} {thing}" if count == 1 else f"{count} {things or thing + 's'}"


def as_words(change: Change) -> str:
    """`batch 16 -> 8 (half the memory of a step)`"""
    why = f" ({change.why})" if change.why else ""
    costs = f"; it costs {change.costs}" if change.costs else ""
    return f"{change.setting} {_value(change.before)} -> {_value(change.after)}{why}{costs}"


def _value(value: object) -> str:
    return "as it was" if value is None else f"{value:g}" if isinstance(value, float) else str(value)


def shares(buckets: Mapping[str, float]) -> str:
    """`training 91%, restart 6%, lost work 2%`: where the time went, the largest first, what is less than 1% left out."""
    whole = sum(buckets.values())
    told = sorted(buckets.items(), key=lambda item: -item[1])
    return ", ".join(f"{name.replace('_', ' ')} {part / whole:.0%}" for name, part in told if part >= 0.01 * whole > 0)

"""Bounds for a TOML text, checked in one pass before the standard reader sees it.

That reader takes time that grows with the square of a key's parts, recurses once for each bracket that is open, and raises
what is no error of syntax for a number of thousands of digits.
"""

from __future__ import annotations

import re

MAX_KEY_PARTS = 16
MAX_DEPTH = 32
"""Brackets and braces that are open at once."""
MAX_VALUES = 20_000
"""Keys and items of lists together."""
MAX_NUMBER_CHARACTERS = 70
"""A 64-bit number in binary, the longest that TOML asks for, has 66."""
_PART = re.compile(
    r'"""[^"\\]*(?:(?:\\.|"{1,2}(?!"))[^"\\]*)*"{3,5}'
    r"|'''[^']*(?:'{1,2}(?!')[^']*)*'{3,5}"
    r'|"(?!"")[^"\\\n]*(?:\\.[^"\\\n]*)*"'
    r"|'(?!'')[^'\n]*'"
    r"|#[^\n]*"
    r"|[\[\]{}.=,\n]"
    r"|[^\[\]{}.=,\n\"'#]+",
    re.DOTALL,
)
"""A string that is not closed is none of these: the pass ends there, and so does the reader's."""
_NUMBER = re.compile(rf"\s*[+-]?\d\w{{{MAX_NUMBER_CHARACTERS - 1}}}", re.ASCII)


def beyond_bounds(text: str, *, max_values: int = MAX_VALUES) -> tuple[int, str] | None:
    """The line and what is too much there; None where the text is within all bounds, or no TOML at all."""
    at = depth = dots = values = 0
    line = 1
    while (match := _PART.match(text, at)) is not None:
        part, at = match[0], match.end()
        if part == ".":
            dots += 1
        elif part in ("[", "{"):
            depth, dots = depth + 1, 0
        elif part in ("]", "}"):
            depth, dots = max(0, depth - 1), 0
        elif part in ("=", ",", "\n"):
            dots, values = 0, values + (part != "\n")
        elif len(part) > MAX_NUMBER_CHARACTERS and _NUMBER.match(part):
            return line, f"a number has more than {MAX_NUMBER_CHARACTERS} digits"
        if dots >= MAX_KEY_PARTS:
            return line, f"a key has more than {MAX_KEY_PARTS} parts"
        if depth > MAX_DEPTH:
            return line, f"nested too deeply: more than {MAX_DEPTH} brackets are open"
        if values > max_values:
            return line, f"it has more than {max_values:,} values"
        line += part.count("\n")
    return None

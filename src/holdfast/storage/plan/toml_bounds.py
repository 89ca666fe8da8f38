"""Bounds for a TOML text, checked in one pass before the standard parser reads it.

The parser takes time that grows with the square of the number of parts of a key, and recurses once for each open
bracket. For a number with thousands of digits, it raises an error that is not a syntax error.
"""

from __future__ import annotations

import re

MAX_KEY_PARTS = 16
MAX_DEPTH = 32
"""Maximum number of brackets and braces open at once."""
MAX_VALUES = 20_000
"""Maximum number of keys and list items together."""
MAX_NUMBER_CHARACTERS = 70
"""A 64-bit number in binary, the longest that TOML requires, has 66."""
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
"""An unclosed string matches none of these: the pass stops there, and so does the parser."""
_NUMBER = re.compile(rf"\s*[+-]?\d\w{{{MAX_NUMBER_CHARACTERS - 1}}}", re.ASCII)


def find_excess(text: str, *, max_values: int = MAX_VALUES) -> tuple[int, str] | None:
    """Return the line and a message for the first bound exceeded; None if there is none, or if the text is not TOML."""
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

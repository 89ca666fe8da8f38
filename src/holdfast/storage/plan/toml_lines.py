"""The line of each key of a TOML text, which the standard parser does not report.

`tomllib` must have parsed the text before: this module assumes that it is valid.
"""

from __future__ import annotations

import bisect
import re

KeyPath = tuple[str | int, ...]
"""Keys from the top level, with indices (from 0) for array items: ("stages", 1, "settings", "imgsz")."""

_BARE = re.compile(r"[A-Za-z0-9_-]+")
_BLANK = re.compile(r"[ \t\r]*")
_GAP = re.compile(r"(?:[ \t\r\n]|#[^\n]*)*")
_PLAIN_VALUE = re.compile(r"[^,\]}#\n]*")
_STRINGS = (
    re.compile(r'"""(?:[^\\]|\\.)*?"{3,5}', re.DOTALL),
    re.compile(r"'''.*?'{3,5}", re.DOTALL),
    re.compile(r'"(?:[^"\\\n]|\\.)*"'),
    re.compile(r"'[^'\n]*'"),
)
_ESCAPE = re.compile(r'\\(u[0-9A-Fa-f]{4}|U[0-9A-Fa-f]{8}|["\\bfnrt])')
_ESCAPED = {'"': '"', "\\": "\\", "b": "\b", "f": "\f", "n": "\n", "r": "\r", "t": "\t"}


def locate_keys(text: str) -> dict[KeyPath, int]:
    """Return the line, from 1, of the first occurrence of each key, table and array item."""
    return _Scanner(text).lines


class _Scanner:
    def __init__(self, text: str) -> None:
        self._text = text
        self._at = 0
        self._ends = [match.start() for match in re.finditer("\n", text)]
        self._arrays: dict[KeyPath, int] = {}
        self.lines: dict[KeyPath, int] = {}
        table: KeyPath = ()
        while self._skip_gap() < len(text):
            if text.startswith("[", self._at):
                table = self._read_header()
            else:
                self._read_pair(table)

    def _record_line(self, path: KeyPath) -> None:
        self.lines.setdefault(path, bisect.bisect_left(self._ends, self._at) + 1)

    def _skip_gap(self) -> int:
        """Skip blanks, newlines and comments."""
        return self._skip(_GAP)

    def _skip(self, pattern: re.Pattern[str]) -> int:
        match = pattern.match(self._text, self._at)
        self._at = match.end() if match else self._at
        return self._at

    def _read_header(self) -> KeyPath:
        """Read `[table]` or `[[array of tables]]` and return the path of its keys."""
        is_array = self._text.startswith("[[", self._at)
        begin = self._at
        self._at += 2 if is_array else 1
        keys = self._read_keys()
        self._skip(_BLANK)
        self._at, end = begin, self._at + (2 if is_array else 1)
        path: KeyPath = ()
        for number, key in enumerate(keys):
            path = (*path, key)
            self._record_line(path)
            if is_array and number == len(keys) - 1:
                self._arrays[path] = self._arrays.get(path, -1) + 1
            if path in self._arrays:
                path = (*path, self._arrays[path])
                self._record_line(path)
        self._at = end
        return path

    def _read_pair(self, table: KeyPath) -> None:
        """Read `key = value`."""
        begin = self._at
        keys = self._read_keys()
        self._skip(_BLANK)
        after = self._at + 1  # the =
        self._at = begin
        for number in range(len(keys)):
            self._record_line((*table, *keys[: number + 1]))
        self._at = after
        self._skip(_BLANK)
        self._read_value((*table, *keys))

    def _read_keys(self) -> list[str]:
        keys = []
        while True:
            self._skip(_BLANK)
            keys.append(self._read_key())
            self._skip(_BLANK)
            if not self._text.startswith(".", self._at):
                return keys
            self._at += 1

    def _read_key(self) -> str:
        if bare := _BARE.match(self._text, self._at):
            self._at = bare.end()
            return bare[0]
        quoted = self._read_string()
        return _ESCAPE.sub(_unescape, quoted[1:-1]) if quoted.startswith('"') else quoted[1:-1]

    def _read_string(self) -> str:
        begin = self._at
        for pattern in _STRINGS:
            if self._skip(pattern) > begin:
                break
        else:
            self._at += 1  # impossible in a valid text: advance to avoid an endless loop
        return self._text[begin : self._at]

    def _read_value(self, path: KeyPath) -> None:
        first = self._text[self._at : self._at + 1]
        if first == "[":
            self._read_items(path)
        elif first == "{":
            self._read_inline_table(path)
        elif first in ('"', "'"):
            self._read_string()
        else:
            self._skip(_PLAIN_VALUE)

    def _read_items(self, path: KeyPath) -> None:
        self._at += 1
        number = 0
        while self._skip_gap() < len(self._text) and self._text[self._at] != "]":
            self._record_line((*path, number))
            self._read_value((*path, number))
            number += 1
            self._skip_comma()
        self._at += 1

    def _read_inline_table(self, path: KeyPath) -> None:
        self._at += 1
        while self._skip_gap() < len(self._text) and self._text[self._at] != "}":
            self._read_pair(path)
            self._skip_comma()
        self._at += 1

    def _skip_comma(self) -> None:
        if self._skip_gap() < len(self._text) and self._text[self._at] == ",":
            self._at += 1


def _unescape(match: re.Match[str]) -> str:
    code = match[1]
    return chr(int(code[1:], 16)) if code[0] in "uU" else _ESCAPED[code]

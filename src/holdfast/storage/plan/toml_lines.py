"""Where each key of a TOML text stands, which the standard reader does not tell.

The text must have been read by `tomllib` already: here it is known to be valid, and only walked through.
"""

from __future__ import annotations

import bisect
import re

KeyPath = tuple[str | int, ...]
"""Keys from the top, with the number of the item (from 0) in an array: ("stages", 1, "settings", "imgsz")."""

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


def lines_of(text: str) -> dict[KeyPath, int]:
    """The line, from 1, at which each key, table and item of an array first stands."""
    return _Walk(text).lines


class _Walk:
    def __init__(self, text: str) -> None:
        self._text = text
        self._at = 0
        self._ends = [match.start() for match in re.finditer("\n", text)]
        self._arrays: dict[KeyPath, int] = {}
        self.lines: dict[KeyPath, int] = {}
        table: KeyPath = ()
        while self._gap() < len(text):
            if text.startswith("[", self._at):
                table = self._header()
            else:
                self._pair(table)

    def _here(self, path: KeyPath) -> None:
        self.lines.setdefault(path, bisect.bisect_left(self._ends, self._at) + 1)

    def _gap(self) -> int:
        """Past blanks, new lines and comments."""
        return self._past(_GAP)

    def _past(self, pattern: re.Pattern[str]) -> int:
        match = pattern.match(self._text, self._at)
        self._at = match.end() if match else self._at
        return self._at

    def _header(self) -> KeyPath:
        """`[table]` or `[[array of tables]]`; the path that its keys stand under."""
        many = self._text.startswith("[[", self._at)
        begin = self._at
        self._at += 2 if many else 1
        keys = self._keys()
        self._past(_BLANK)
        self._at, end = begin, self._at + (2 if many else 1)
        path: KeyPath = ()
        for number, key in enumerate(keys):
            path = (*path, key)
            self._here(path)
            if many and number == len(keys) - 1:
                self._arrays[path] = self._arrays.get(path, -1) + 1
            if path in self._arrays:
                path = (*path, self._arrays[path])
                self._here(path)
        self._at = end
        return path

    def _pair(self, table: KeyPath) -> None:
        """`key = value`, from the key on."""
        begin = self._at
        keys = self._keys()
        self._past(_BLANK)
        after = self._at + 1  # the =
        self._at = begin
        for number in range(len(keys)):
            self._here((*table, *keys[: number + 1]))
        self._at = after
        self._past(_BLANK)
        self._value((*table, *keys))

    def _keys(self) -> list[str]:
        keys = []
        while True:
            self._past(_BLANK)
            keys.append(self._key())
            self._past(_BLANK)
            if not self._text.startswith(".", self._at):
                return keys
            self._at += 1

    def _key(self) -> str:
        if bare := _BARE.match(self._text, self._at):
            self._at = bare.end()
            return bare[0]
        quoted = self._string()
        return _ESCAPE.sub(_unescaped, quoted[1:-1]) if quoted.startswith('"') else quoted[1:-1]

    def _string(self) -> str:
        begin = self._at
        for pattern in _STRINGS:
            if self._past(pattern) > begin:
                break
        else:
            self._at += 1  # cannot be in a valid text: go on rather than stand still
        return self._text[begin : self._at]

    def _value(self, path: KeyPath) -> None:
        first = self._text[self._at : self._at + 1]
        if first == "[":
            self._items(path)
        elif first == "{":
            self._inline(path)
        elif first in ('"', "'"):
            self._string()
        else:
            self._past(_PLAIN_VALUE)

    def _items(self, path: KeyPath) -> None:
        self._at += 1
        number = 0
        while self._gap() < len(self._text) and self._text[self._at] != "]":
            self._here((*path, number))
            self._value((*path, number))
            number += 1
            self._comma()
        self._at += 1

    def _inline(self, path: KeyPath) -> None:
        self._at += 1
        while self._gap() < len(self._text) and self._text[self._at] != "}":
            self._pair(path)
            self._comma()
        self._at += 1

    def _comma(self) -> None:
        if self._gap() < len(self._text) and self._text[self._at] == ",":
            self._at += 1


def _unescaped(match: re.Match[str]) -> str:
    code = match[1]
    return chr(int(code[1:], 16)) if code[0] in "uU" else _ESCAPED[code]

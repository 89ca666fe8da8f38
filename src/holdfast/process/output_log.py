"""What a child printed, kept on disk within a bound, and made readable.

A stream's log is up to three files beside each other:

    stdout.log            the first 8 MB
    stdout.log.older      a middle part, at most 28 MB
    stdout.log.newest     the last part, at most 28 MB

Output past the first 8 MB goes to `newest`; when that is full it becomes `older`, in place of the one before. Each part
but the first begins with a line that says at which byte of the stream it goes on, so that a gap can be told:

    [holdfast: output from byte 8388608 on]

Where bytes could not be written (a full disk), the log says how many when it goes on.
"""

from __future__ import annotations

import os
import re
from typing import TYPE_CHECKING

from holdfast.storage.safe_files import open_handle, open_regular

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

HEAD_BYTES = 8 << 20
PART_BYTES = 28 << 20
_BEGINS = re.compile(rb"\[holdfast: output from byte (\d+) on\]\n")


class OutputLog:
    """The written side. It never raises: recording must not disturb what is recorded."""

    def __init__(self, path: Path, *, head_bytes: int = HEAD_BYTES, part_bytes: int = PART_BYTES) -> None:
        self._path = path
        self._part_bytes = part_bytes
        self._file: int | None = None
        self._room = head_bytes
        self._in_head = True
        self._position = 0
        """How far the stream has come, whether recorded or not."""
        self._lost = 0
        self._why_lost = ""
        self.write(b"")

    def write(self, data: bytes) -> None:
        rest = memoryview(data)
        try:
            self._open()
            while rest:
                if self._room <= 0:
                    self._next_part()
                self._tell_loss()
                written = self._put(rest[: max(0, self._room)])
                self._position += written
                rest = rest[written:]
        except OSError as error:
            self._position += len(rest)
            self._lost += len(rest)
            self._why_lost = os.strerror(error.errno or 0)

    def close(self) -> None:
        if self._file is not None:
            os.close(self._file)
            self._file = None

    def _put(self, data: bytes | memoryview) -> int:
        assert self._file is not None
        written = os.write(self._file, data)
        self._room -= written
        return written

    def _open(self) -> None:
        if self._file is not None:
            return
        path = self._path if self._in_head else newest_part(self._path)
        flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
        self._file = open_handle(path, flags)
        if not self._in_head:
            self._put(b"[holdfast: output from byte %d on]\n" % self._position)

    def _next_part(self) -> None:
        if not self._in_head:
            newest_part(self._path).replace(older_part(self._path))
        self.close()
        self._in_head = False
        self._room = self._part_bytes
        self._open()

    def _tell_loss(self) -> None:
        if self._lost:
            self._put(b"\n[holdfast: %d bytes not recorded: %s]\n" % (self._lost, self._why_lost.encode()))
            self._lost = 0


def newest_part(path: Path) -> Path:
    return path.with_name(path.name + ".newest")


def older_part(path: Path) -> Path:
    return path.with_name(path.name + ".older")


def read_output(path: Path) -> Iterator[bytes]:
    """A recorded stream from its beginning, with a line in place of what is missing in the middle."""
    position = 0
    for part in (path, older_part(path), newest_part(path)):
        try:
            opened = open_regular(part, follow_links=False)
        except OSError:
            continue
        with opened as file:
            begins = 0
            if part != path:
                heading = _BEGINS.fullmatch(file.readline())
                begins = int(heading.group(1)) if heading else position
            if begins > position:
                yield b"\n[holdfast: %d bytes left out]\n" % (begins - position)
            while chunk := file.read(1 << 16):
                yield chunk
            position = begins + file.tell() - (len(heading.group()) if part != path and heading else 0)


_ESCAPES = re.compile(
    r"\x1b\[[0-?]*[ -/]*[@-~]"  # colours, cursor movements
    r"|\x1b[\]P^_X][^\x07\x1b]*(?:\x07|\x1b\\|$)"  # titles, links
    r"|\x1b[ -/]*[0-~]?"
    r"|\x9b[0-?]*[ -/]*[@-~]"
)
_OTHER_CONTROLS = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")
LINE_CHARACTERS = 2000


def readable_lines(output: bytes, lines: int) -> list[str]:
    """The last lines as a person would see them: no colours, a progress bar as it stood at the end, no endless line."""
    text = _ESCAPES.sub("", output.decode("utf-8", "replace"))
    seen = [_as_it_stands(line) for line in text.split("\n")]
    while seen and not seen[-1]:
        seen.pop()
    return seen[-lines:] if lines > 0 else []


def _as_it_stands(line: str) -> str:
    states = [_OTHER_CONTROLS.sub("", state).rstrip() for state in line.split("\r")]
    last = next((state for state in reversed(states) if state), "")
    if len(last) <= LINE_CHARACTERS:
        return last
    return f"{last[: LINE_CHARACTERS // 2]} [...] {last[-LINE_CHARACTERS // 2 :]}"

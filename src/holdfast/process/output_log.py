"""The recorded output of a child: logs of bounded size on disk, and their readable form.

The log of a stream consists of up to three files in the same folder:

    stdout.log            the first 8 MB
    stdout.log.older      a middle part, at most 28 MB
    stdout.log.newest     the last part, at most 28 MB

Output past the first 8 MB goes to `newest`. When that file is full it is renamed to `older` and replaces the previous
one. Each part but the first starts with a line that gives its first byte in the stream, so that a gap can be detected:

    [holdfast: output from byte 8388608 on]

If bytes could not be written (a full disk), the log states how many once writing works again.
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
_PART_HEADING = re.compile(rb"\[holdfast: output from byte (\d+) on\]\n")


class OutputLog:
    """The writer. It never raises: recording must not disturb the training."""

    def __init__(self, path: Path, *, head_bytes: int = HEAD_BYTES, part_bytes: int = PART_BYTES) -> None:
        self._path = path
        self._part_bytes = part_bytes
        self._file: int | None = None
        self._room = head_bytes
        self._in_head = True
        self._position = 0
        """Bytes of the stream so far, recorded or not."""
        self._lost = 0
        self._loss_reason = ""
        self.write(b"")

    def write(self, data: bytes) -> None:
        rest = memoryview(data)
        try:
            self._open()
            while rest:
                if self._room <= 0:
                    self._next_part()
                self._record_loss()
                written = self._write_bytes(rest[: max(0, self._room)])
                self._position += written
                rest = rest[written:]
        except OSError as error:
            self._position += len(rest)
            self._lost += len(rest)
            self._loss_reason = os.strerror(error.errno or 0)

    def close(self) -> None:
        if self._file is not None:
            os.close(self._file)
            self._file = None

    def _write_bytes(self, data: bytes | memoryview) -> int:
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
            self._write_bytes(b"[holdfast: output from byte %d on]\n" % self._position)

    def _next_part(self) -> None:
        if not self._in_head:
            newest_part(self._path).replace(older_part(self._path))
        self.close()
        self._in_head = False
        self._room = self._part_bytes
        self._open()

    def _record_loss(self) -> None:
        if self._lost:
            self._write_bytes(b"\n[holdfast: %d bytes not recorded: %s]\n" % (self._lost, self._loss_reason.encode()))
            self._lost = 0


def newest_part(path: Path) -> Path:
    return path.with_name(path.name + ".newest")


def older_part(path: Path) -> Path:
    return path.with_name(path.name + ".older")


def read_output(path: Path) -> Iterator[bytes]:
    """Yield a recorded stream from its beginning, with a line in place of the bytes that are missing in the middle."""
    position = 0
    for part in (path, older_part(path), newest_part(path)):
        try:
            opened = open_regular(part, follow_links=False)
        except OSError:
            continue
        with opened as file:
            start = 0
            if part != path:
                heading = _PART_HEADING.fullmatch(file.readline())
                start = int(heading.group(1)) if heading else position
            if start > position:
                yield b"\n[holdfast: %d bytes left out]\n" % (start - position)
            while chunk := file.read(1 << 16):
                yield chunk
            position = start + file.tell() - (len(heading.group()) if part != path and heading else 0)


ESCAPES = re.compile(
    r"\x1b\[[0-?]*[ -/]*[@-~]"  # colors, cursor movements
    r"|\x1b[\]P^_X][^\x07\x1b]*(?:\x07|\x1b\\|$)"  # titles, links
    r"|\x1b[ -/]*[0-~]?"
    r"|\x9b[0-?]*[ -/]*[@-~]"
)
_OTHER_CONTROLS = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")
MAX_LINE_CHARS = 2000


def readable_lines(output: bytes, lines: int) -> list[str]:
    """Return the last lines as shown: without colors, with only the final state of a progress bar, no endless line."""
    text = ESCAPES.sub("", output.decode("utf-8", "replace"))
    rendered = [_render_final_text(line) for line in text.split("\n")]
    while rendered and not rendered[-1]:
        rendered.pop()
    return rendered[-lines:] if lines > 0 else []


def _render_final_text(line: str) -> str:
    states = [_OTHER_CONTROLS.sub("", state).rstrip() for state in line.split("\r")]
    last = next((state for state in reversed(states) if state), "")
    if len(last) <= MAX_LINE_CHARS:
        return last
    return f"{last[: MAX_LINE_CHARS // 2]} [...] {last[-MAX_LINE_CHARS // 2 :]}"

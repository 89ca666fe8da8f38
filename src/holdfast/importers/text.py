"""Bounded reading of a file or stream as text: its beginning and end in full; the middle is only scanned.

The encoding is detected by the byte order mark, or without one by whether UTF-8 fits. Binary files are rejected.
"""

from __future__ import annotations

import codecs
import os
import re
import select
import stat
import sys
from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING, BinaryIO

from holdfast.schema.errors import RecordUnknown
from holdfast.schema.units import size

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

HEAD_BYTES = 4 << 20
TAIL_BYTES = 4 << 20
MAX_SCANNED_BYTES = 64 << 20
"""Maximum number of bytes in the middle that are scanned for known messages."""
FIRST_BYTE_S = 4.0
"""How long to wait for the first byte of a FIFO or device."""
MAX_STREAM_BYTES = 8 << 30
"""Reading of a stream stops after this many bytes."""
CHUNK = 1 << 20
SNIFF_BYTES = 1 << 16
_MARKS = (
    (codecs.BOM_UTF8, "utf-8-sig"),
    (codecs.BOM_UTF32_LE, "utf-32-le"),
    (codecs.BOM_UTF32_BE, "utf-32-be"),
    (codecs.BOM_UTF16_LE, "utf-16-le"),
    (codecs.BOM_UTF16_BE, "utf-16-be"),
)
_HOLES = re.compile(rb"\0{8,}")
"""A log that was truncated while a program wrote to it has a hole at its beginning."""
_MAGIC = {
    b"PK\x03\x04": "a zip archive, as torch.save writes",
    b"\x80\x02": "a pickle",
    b"\x80\x03": "a pickle",
    b"\x80\x04": "a pickle",
    b"\x80\x05": "a pickle",
    b"\x1f\x8b": "a gzip file",
    b"\x89PNG": "an image",
    b"\xff\xd8\xff": "an image",
    b"SQLite format 3": "a database",
}


@dataclass(frozen=True)
class Source:
    """The text of a record."""

    name: str
    head: str
    tail: str = ""
    """The end, if it is not already in the head."""
    between: int = 0
    """Bytes between head and tail; `scanned` is how many of them were scanned."""
    scanned: int = 0
    size: int = 0
    encoding: str = "utf-8"

    @property
    def text(self) -> str:
        return f"{self.head}\n{self.tail}" if self.tail else self.head

    @property
    def note(self) -> str:
        """A sentence about what was not read; empty if everything was read."""
        if not self.between:
            return ""
        unread = self.between - self.scanned
        scanned = f"; {size(self.scanned)} of it was scanned for known messages" if self.scanned else ""
        rest = f", {size(unread)} was not read at all" if unread and self.scanned else ""
        return (
            f"{self.name} is {size(self.size)} long: its first and last {size(HEAD_BYTES)} were read line by line, "
            f"the {size(self.between)} in between was not{scanned}{rest}."
        )


def read_source(path: Path | None, *, scan: Callable[[str], object] | None = None) -> Source:
    """Read the text of a file, or of standard input if the path is None. `scan` gets the middle in pieces."""
    if path is None and sys.stdin is None:
        raise RecordUnknown("Standard input is closed.", next_step="pipe a log into it, or give a path")
    if path is None:
        return _from_stream(sys.stdin.buffer, "standard input", scan)
    try:
        with os.fdopen(os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC), "rb") as file:
            status = os.fstat(file.fileno())
            if not stat.S_ISREG(status.st_mode):
                _wait_for_first_byte(file, path)
                return _from_stream(file, path.name, scan)
            return _from_file(file, path.name, status.st_size, scan)
    except OSError as error:
        raise RecordUnknown(
            f"{path} cannot be read: {error.strerror}.", next_step="give a file or folder that you may read"
        ) from error


def _wait_for_first_byte(file: BinaryIO, path: Path) -> None:
    """Wait for data from a FIFO such as `<(zcat log.gz)`. Raise if none arrives: without a writer, reading would block forever."""
    if not select.select([file], [], [], FIRST_BYTE_S)[0]:
        raise RecordUnknown(
            f"{path} is not a regular file, and no data arrived from it within {FIRST_BYTE_S:g} seconds.",
            next_step="give the file itself; or use - to wait for standard input without a limit",
        )
    os.set_blocking(file.fileno(), True)


def sniff(path: Path) -> bytes:
    """Return the first bytes of a file; empty if it cannot be read or is not a regular file."""
    try:
        with path.open("rb") as file:
            return file.read(SNIFF_BYTES) if stat.S_ISREG(os.fstat(file.fileno()).st_mode) else b""
    except OSError:
        return b""


def detect_encoding(head: bytes, name: str) -> str:
    """Return the encoding of these bytes. Raise RecordUnknown if they are not text."""
    for mark, encoding in _MARKS:
        if head.startswith(mark):
            return encoding
    sample = _HOLES.sub(b"", head)[:SNIFF_BYTES]
    if head and not sample:
        raise _binary_error(name, head)
    zeros = sample.count(0)
    if zeros > len(sample) // 8:
        encoding = "utf-16-le" if sample[1::2].count(0) >= sample[::2].count(0) else "utf-16-be"
        decoded = sample[: len(sample) // 2 * 2].decode(encoding, "replace")
        if _is_readable(decoded) and "\0" not in decoded:
            return encoding
        raise _binary_error(name, head)
    try:
        codecs.getincrementaldecoder("utf-8")().decode(sample)
    except UnicodeDecodeError:
        decoded = sample.decode("latin-1")
        # Mostly UTF-8 with a few corrupt bytes is still UTF-8: a bad byte in every line means another encoding.
        corrupt = sample.decode("utf-8", "replace").count("\ufffd")
        wide = sum(byte >= 0x80 for byte in sample)
        if not _is_readable(decoded):
            raise _binary_error(name, head) from None
        return "utf-8" if corrupt * 2 < wide else "latin-1"
    if not _is_readable(sample.decode("utf-8", "replace")):
        raise _binary_error(name, head)
    return "utf-8"


def _is_readable(text: str) -> bool:
    """Check that the text is mostly printable: terminal output has a few control characters, binary files have many."""
    controls = sum(1 for c in text if (c < " " and c not in "\t\n\r\x1b\b\f") or "\x7f" <= c <= "\x9f" or c == "\ufffd")
    return controls <= len(text) // 20


def _binary_error(name: str, head: bytes) -> RecordUnknown:
    kind = next((kind for magic, kind in _MAGIC.items() if head.startswith(magic)), "not a text file")
    why = ". Holdfast does not load files that can run code" if "torch.save" in kind or kind == "a pickle" else ""
    return RecordUnknown(
        f"{name} is {kind}{why}.",
        next_step="give the folder of the run, its results.csv, metrics.csv, trainer_state.json, or its log",
    )


def _from_file(file: BinaryIO, name: str, size: int, scan: Callable[[str], object] | None) -> Source:
    head = file.read(HEAD_BYTES + 4)
    encoding = detect_encoding(head, name)
    if size <= HEAD_BYTES + TAIL_BYTES:
        return Source(name, _decode(head + file.read(TAIL_BYTES), encoding), size=size, encoding=encoding)
    head = head[:HEAD_BYTES]
    tail_at = (size - TAIL_BYTES) // 4 * 4  # aligned: no code unit of UTF-16 or UTF-32 is split
    file.seek(HEAD_BYTES)
    scanned = _scan(_read_pieces(file, min(MAX_SCANNED_BYTES, tail_at - HEAD_BYTES)), encoding, scan)
    file.seek(tail_at)
    tail = file.read(TAIL_BYTES + 4)
    between = tail_at - HEAD_BYTES
    return Source(name, _decode(head, encoding), _decode(tail, encoding), between, scanned, size, encoding)


def _from_stream(file: BinaryIO, name: str, scan: Callable[[str], object] | None) -> Source:
    """Read a stream. Its end cannot be sought, so the newest pieces are kept while reading."""
    head = b""
    while len(head) < HEAD_BYTES and (piece := file.read(min(CHUNK, HEAD_BYTES - len(head)))):
        head += piece
        if len(head) == len(piece):
            detect_encoding(head, name)  # rejects an endless binary stream at its first piece
    encoding = detect_encoding(head, name)
    size, scanned, kept = len(head), 0, 0
    newest: deque[bytes] = deque()
    while size < MAX_STREAM_BYTES and (piece := file.read(CHUNK)):
        size += len(piece)
        kept += len(piece)
        newest.append(piece)
        while kept - len(newest[0]) >= TAIL_BYTES:
            older = newest.popleft()
            kept -= len(older)
            if scanned < MAX_SCANNED_BYTES:
                scanned += _scan([older], encoding, scan)
    between = size - len(head) - kept
    tail = b"".join(newest)
    if not between:
        return Source(name, _decode(head + tail, encoding), size=size, encoding=encoding)
    return Source(name, _decode(head, encoding), _decode(tail, encoding), between, scanned, size, encoding)


def _read_pieces(file: BinaryIO, limit: int) -> Iterator[bytes]:
    while limit > 0 and (piece := file.read(min(CHUNK, limit))):
        limit -= len(piece)
        yield piece


def _scan(pieces: Iterator[bytes] | list[bytes], encoding: str, scan: Callable[[str], object] | None) -> int:
    """Pass pieces to `scan`. A message that is split between two pieces is missed; it is one of many."""
    scanned = 0
    if scan is not None:
        for piece in pieces:
            scan(_decode(piece, encoding))
            scanned += len(piece)
    return scanned


def _decode(data: bytes, encoding: str) -> str:
    text = data.decode(encoding, "replace")
    return text.removeprefix("\ufeff").replace("\0", "")

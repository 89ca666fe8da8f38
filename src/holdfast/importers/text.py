"""Any file or stream as text, within a bound: its beginning and its end in full, what lies between only scanned.

Encodings are told by their marks and, without any, by whether UTF-8 fits. What is no text is said to be none.
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

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

HEAD_BYTES = 4 << 20
TAIL_BYTES = 4 << 20
SCANNED_BYTES = 64 << 20
"""Of what lies between, at most this much is looked through for known words."""
FIRST_BYTE_S = 4.0
"""For a FIFO or device that the user names: so long it is waited for its first byte."""
STREAM_BYTES = 8 << 30
"""A stream that goes on longer than this is left."""
CHUNK = 1 << 20
SNIFFED = 1 << 16
_MARKS = (
    (codecs.BOM_UTF8, "utf-8-sig"),
    (codecs.BOM_UTF32_LE, "utf-32-le"),
    (codecs.BOM_UTF32_BE, "utf-32-be"),
    (codecs.BOM_UTF16_LE, "utf-16-le"),
    (codecs.BOM_UTF16_BE, "utf-16-be"),
)
_HOLES = re.compile(rb"\0{8,}")
"""A log that was emptied while a program wrote to it has a hole where its beginning was."""
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
    """The end, where it is not in the head already."""
    between: int = 0
    """Bytes between head and tail, and how many of them were scanned."""
    scanned: int = 0
    size: int = 0
    encoding: str = "utf-8"

    @property
    def text(self) -> str:
        return f"{self.head}\n{self.tail}" if self.tail else self.head

    @property
    def note(self) -> str:
        """What of it was not read, as a sentence; empty where all was."""
        if not self.between:
            return ""
        unread = self.between - self.scanned
        scanned = f"; {_size(self.scanned)} of it were looked through for known words" if self.scanned else ""
        rest = f", {_size(unread)} were not read at all" if unread and self.scanned else ""
        return (
            f"{self.name} has {_size(self.size)}: its first and last {_size(HEAD_BYTES)} were read line by line, "
            f"the {_size(self.between)} between were not{scanned}{rest}."
        )


def read_source(path: Path | None, *, scan: Callable[[str], object] | None = None) -> Source:
    """A file's text, or standard input's where there is no path. `scan` is shown what lies between, piece by piece."""
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
    """A FIFO, as `<(zcat log.gz)` is one, may be read; one that nobody writes to would be waited for without an end."""
    if not select.select([file], [], [], FIRST_BYTE_S)[0]:
        raise RecordUnknown(
            f"{path} is no ordinary file, and nothing came from it for {FIRST_BYTE_S:g} seconds.",
            next_step="give the file itself; or - to wait for standard input as long as it takes",
        )
    os.set_blocking(file.fileno(), True)


def sniff(path: Path) -> bytes:
    """The first bytes of a file; none where it cannot be read or is none."""
    try:
        with path.open("rb") as file:
            return file.read(SNIFFED) if stat.S_ISREG(os.fstat(file.fileno()).st_mode) else b""
    except OSError:
        return b""


def encoding_of(head: bytes, name: str) -> str:
    """How these bytes are text. Raises RecordUnknown where they are none."""
    for mark, encoding in _MARKS:
        if head.startswith(mark):
            return encoding
    sample = _HOLES.sub(b"", head)[:SNIFFED]
    if head and not sample:
        raise _binary(name, head)
    zeros = sample.count(0)
    if zeros > len(sample) // 8:
        encoding = "utf-16-le" if sample[1::2].count(0) >= sample[::2].count(0) else "utf-16-be"
        decoded = sample[: len(sample) // 2 * 2].decode(encoding, "replace")
        if _readable(decoded) and "\0" not in decoded:
            return encoding
        raise _binary(name, head)
    try:
        codecs.getincrementaldecoder("utf-8")().decode(sample)
    except UnicodeDecodeError:
        decoded = sample.decode("latin-1")
        # Mostly UTF-8 with a few spoiled bytes is still UTF-8: a bad byte a line would be another alphabet.
        corrupt = sample.decode("utf-8", "replace").count("\ufffd")
        wide = sum(byte >= 0x80 for byte in sample)
        if not _readable(decoded):
            raise _binary(name, head) from None
        return "utf-8" if corrupt * 2 < wide else "latin-1"
    if not _readable(sample.decode("utf-8", "replace")):
        raise _binary(name, head)
    return "utf-8"


def _readable(text: str) -> bool:
    """Mostly letters and the like: terminals get a few control characters, programs get many."""
    controls = sum(1 for c in text if (c < " " and c not in "\t\n\r\x1b\b\f") or "\x7f" <= c <= "\x9f" or c == "\ufffd")
    return controls <= len(text) // 20


def _binary(name: str, head: bytes) -> RecordUnknown:
    kind = next((kind for magic, kind in _MAGIC.items() if head.startswith(magic)), "no text")
    why = ". Holdfast does not load what can run code" if "torch.save" in kind or kind == "a pickle" else ""
    return RecordUnknown(
        f"{name} is {kind}{why}.",
        next_step="give the folder of the run, its results.csv, metrics.csv, trainer_state.json, or its log",
    )


def _from_file(file: BinaryIO, name: str, size: int, scan: Callable[[str], object] | None) -> Source:
    head = file.read(HEAD_BYTES + 4)
    encoding = encoding_of(head, name)
    if size <= HEAD_BYTES + TAIL_BYTES:
        return Source(name, _decoded(head + file.read(TAIL_BYTES), encoding), size=size, encoding=encoding)
    head = head[:HEAD_BYTES]
    tail_at = (size - TAIL_BYTES) // 4 * 4  # no character of any encoding above begins before a multiple of 4
    file.seek(HEAD_BYTES)
    scanned = _scan(_pieces(file, min(SCANNED_BYTES, tail_at - HEAD_BYTES)), encoding, scan)
    file.seek(tail_at)
    tail = file.read(TAIL_BYTES + 4)
    between = tail_at - HEAD_BYTES
    return Source(name, _decoded(head, encoding), _decoded(tail, encoding), between, scanned, size, encoding)


def _from_stream(file: BinaryIO, name: str, scan: Callable[[str], object] | None) -> Source:
    """A stream cannot be asked for its end: the newest of it is kept while it is read."""
    head = b""
    while len(head) < HEAD_BYTES and (piece := file.read(min(CHUNK, HEAD_BYTES - len(head)))):
        head += piece
        if len(head) == len(piece):
            encoding_of(head, name)  # an endless stream of nothing is told from its first piece
    encoding = encoding_of(head, name)
    size, scanned, kept = len(head), 0, 0
    newest: deque[bytes] = deque()
    while size < STREAM_BYTES and (piece := file.read(CHUNK)):
        size += len(piece)
        kept += len(piece)
        newest.append(piece)
        while kept - len(newest[0]) >= TAIL_BYTES:
            older = newest.popleft()
            kept -= len(older)
            if scanned < SCANNED_BYTES:
                scanned += _scan([older], encoding, scan)
    between = size - len(head) - kept
    tail = b"".join(newest)
    if not between:
        return Source(name, _decoded(head + tail, encoding), size=size, encoding=encoding)
    return Source(name, _decoded(head, encoding), _decoded(tail, encoding), between, scanned, size, encoding)


def _pieces(file: BinaryIO, most: int) -> Iterator[bytes]:
    while most > 0 and (piece := file.read(min(CHUNK, most))):
        most -= len(piece)
        yield piece


def _scan(pieces: Iterator[bytes] | list[bytes], encoding: str, scan: Callable[[str], object] | None) -> int:
    """A word that is cut by the end of a piece is missed: it is one of many."""
    scanned = 0
    if scan is not None:
        for piece in pieces:
            scan(_decoded(piece, encoding))
            scanned += len(piece)
    return scanned


def _decoded(data: bytes, encoding: str) -> str:
    text = data.decode(encoding, "replace")
    return text.removeprefix("\ufeff").replace("\0", "")


def _size(count: int) -> str:
    return f"{count / 1e9:.1f} GB" if count >= 1e9 else f"{count / 1e6:.1f} MB" if count >= 1e5 else f"{count} bytes"

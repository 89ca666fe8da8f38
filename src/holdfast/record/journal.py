"""The journal: an append-only file of events, one JSON line each.

`journal.jsonl` is written by the supervisor alone. Each rank of the training writes its own file beside it, under
`attempts/<n>/`; together they are the record, and `replay` gives them back as one stream in the order in which things
happened. A torn line (a kill or a full disk in the middle of a write) is skipped and counted, never an error.
"""

from __future__ import annotations

import heapq
import os
from collections import deque
from typing import TYPE_CHECKING, NamedTuple

import msgspec

from holdfast.record.folder import RunFolder
from holdfast.record.reserve import Reserve
from holdfast.record.safe_files import open_handle
from holdfast.words import events
from holdfast.words.errors import FolderNotWritable, JournalUnreadable

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from pathlib import Path

LONGEST_LINE = 1 << 20
"""A line beyond this is not an event of ours: it is skipped without being held in memory."""
PENDING_EVENTS = 10_000
"""How many events wait in memory while the disk is full; the oldest are given up first."""


class Entry(NamedTuple):
    """An event and where it was recorded."""

    event: events.AnyEvent
    attempt: int
    rank: int | None = None
    """None for the supervisor's own events."""
    primary: bool = True


class JournalWriter:
    """Appends events. A disk that is full loses nothing that fits in memory until there is room again, and that there is at the end."""

    def __init__(self, path: Path) -> None:
        flags = os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
        try:
            self._handle = open_handle(path, flags)
        except OSError as error:
            raise FolderNotWritable(
                f"The journal {path} cannot be written: {error.strerror}.",
                next_step="make room on the disk, or choose another folder with --dir DIR",
            ) from error
        self._reserve = Reserve(path.with_name("reserve"))
        self._pending: deque[bytes] = deque(maxlen=PENDING_EVENTS)
        size = os.fstat(self._handle).st_size
        self._torn = size > 0 and os.pread(self._handle, 1, size - 1) != b"\n"
        self.trouble: str | None = None
        """Why the last write failed; None when all is written."""

    def append(self, event: events.Event) -> None:
        self._pending.append(events.encode(event) + b"\n")
        self.flush()

    def flush(self) -> bool:
        """Write what is pending; True when nothing is left."""
        while self._pending:
            line = (b"\n" if self._torn else b"") + self._pending[0]
            try:
                written = os.write(self._handle, line)
            except OSError as error:
                self.trouble = error.strerror
                return False
            if written < len(line):
                self._torn = line[:written][-1:] not in (b"\n", b"") or (self._torn and written == 0)
                self.trouble = "the disk took only a part of a line"
                return False
            self._torn = False
            self._pending.popleft()
        self.trouble = None
        return True

    def sync(self) -> None:
        try:
            os.fsync(self._handle)
        except OSError as error:
            self.trouble = error.strerror

    def close(self) -> None:
        self._reserve.give_back()
        self.flush()
        os.close(self._handle)


class Tail:
    """Reads what was added to a file of events since the last time, a bounded amount a call."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.skipped = 0
        """Lines that are no events: torn, foreign, or from a newer version."""
        self.at_end = False
        self._offset = 0
        self._partial = b""
        self._overlong = False

    @property
    def position(self) -> int:
        """Bytes read so far."""
        return self._offset

    def read(self, limit: int = 4 << 20) -> list[events.AnyEvent]:
        try:
            with self.path.open("rb") as file:
                file.seek(self._offset)
                data = file.read(limit)
        except FileNotFoundError:
            self.at_end = True
            return []
        self.at_end = len(data) < limit
        self._offset += len(data)
        lines = (self._partial + data).split(b"\n")
        self._partial = lines.pop()
        found = []
        for line in lines:
            if self._overlong:
                self._overlong = False
                self.skipped += 1
            elif line and (event := self._decode(line)) is not None:
                found.append(event)
        if len(self._partial) > LONGEST_LINE:
            self._partial, self._overlong = b"", True
        return found

    def _decode(self, line: bytes) -> events.AnyEvent | None:
        try:
            return events.decode(line)
        except (msgspec.MsgspecError, UnicodeDecodeError):
            self.skipped += 1
            return None


def rank_of(path: Path) -> tuple[int, bool]:
    """Which rank wrote this file, and whether as that rank's first process."""
    parts = path.stem.split("-")
    return int(parts[1]), len(parts) == 2


def replay(run: RunFolder | Path) -> Iterator[Entry]:
    """Every event of a run in order: the supervisor's, with the ranks' events of each attempt where they belong."""
    run = run if isinstance(run, RunFolder) else RunFolder(run)
    if not run.journal.is_file():
        raise JournalUnreadable(
            f"{run.path} has no journal.", next_step="give the folder of a run", look_at=str(run.path)
        )
    attempt = 0
    ranks = _Ahead(iter(()))
    for event in _read(run.journal):
        if isinstance(event, events.RunStarted) and event.schema > events.SCHEMA:
            raise JournalUnreadable(
                f"{run.journal} has schema {event.schema}; this Holdfast reads up to {events.SCHEMA}.",
                next_step="use the Holdfast that wrote it, or a newer one",
            )
        if isinstance(event, events.AttemptStarted):
            yield from ranks.rest()
            attempt = event.attempt
            ranks = _Ahead(_ranks(run, attempt))
        elif isinstance(event, (events.AttemptEnded, events.RunContinued)):
            yield from ranks.rest()
        else:
            yield from ranks.until(event.at)
        yield Entry(event, attempt)
    yield from ranks.rest()


class _Ahead:
    """An iterator of entries that can be taken up to a moment."""

    def __init__(self, entries: Iterator[Entry]) -> None:
        self._entries = entries
        self._next = next(entries, None)

    def until(self, at: float) -> Iterator[Entry]:
        while self._next is not None and self._next.event.at <= at:
            yield self._next
            self._next = next(self._entries, None)

    def rest(self) -> Iterator[Entry]:
        yield from self.until(float("inf"))


def _ranks(run: RunFolder, attempt: int) -> Iterator[Entry]:
    folder = run.attempt(attempt)
    streams: list[Iterable[Entry]] = [(Entry(event, attempt) for event in _read(folder.interpreters))]
    streams += [_rank(path, attempt) for path in folder.rank_files()]
    return heapq.merge(*streams, key=lambda entry: entry.event.at)


def _rank(path: Path, attempt: int) -> Iterator[Entry]:
    rank, primary = rank_of(path)
    return (Entry(event, attempt, rank, primary) for event in _read(path))


def _read(path: Path) -> Iterator[events.AnyEvent]:
    tail = Tail(path)
    while not tail.at_end:
        yield from tail.read()

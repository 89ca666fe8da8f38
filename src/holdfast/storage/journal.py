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

from holdfast.schema import events
from holdfast.schema.errors import FolderNotWritable, JournalUnreadable
from holdfast.schema.shell_text import shell_quoted
from holdfast.storage.disk_reserve import Reserve
from holdfast.storage.folder import RunFolder, rank_in
from holdfast.storage.safe_files import HasOtherNames, open_handle, open_regular

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from pathlib import Path

MAX_LINE = 1 << 20
"""A line beyond this is not an event of ours: it is skipped without being held in memory."""
MAX_FILE_BYTES = 1 << 30
"""Of one file. A million steps take at most 64 MB, and a month of samples less than half of this."""
MAX_RUN_BYTES = 8 << 30
"""Of all files of a run: a hundred times a million steps, or a million steps of a hundred ranks."""
MAX_KEPT_BYTES = 128 << 20
"""Of events in one file that readers keep one by one. A probe writes 4 MB of them, and 10 bytes more a step."""
MAX_SUPERVISOR_BYTES = 32 << 20
"""The same of the supervisor's own file, which has no events of steps in it."""
MAX_SKIPPED = 100_000
"""Lines of one file that are no events: who has so many has no record of ours."""
MAX_ATTEMPTS = 10_000
CHUNK_BYTES = 4 << 20
MIN_CHUNK_BYTES = 128 << 10
MAX_HELD_BYTES = 64 << 20
"""What is read of all files of ranks at once, each of which waits for its turn."""
_NOT_COUNTED = frozenset(
    (
        *(events.Step, events.Steps, events.Sample, events.Memory, events.Checksum, events.Gradients),
        *(events.RunStarted, events.RunContinued, events.RunEnded, events.AttemptStarted, events.AttemptEnded),
    )
)
"""Kinds of which readers keep sums and a few examples, or one for each attempt."""
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
            linked = isinstance(error, HasOtherNames)
            raise FolderNotWritable(
                f"The journal {path} cannot be written: {error.strerror}.",
                next_step=f"copy the run (cp -r {shell_quoted(path.parent)} COPY), which makes it a file of its own, and resume the copy"
                if linked
                else "make room on the disk, or choose another folder with --dir DIR",
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

    def __init__(self, path: Path, max_kept_bytes: int | None = None) -> None:
        self.path = path
        self._max_kept_bytes = MAX_KEPT_BYTES if max_kept_bytes is None else max_kept_bytes
        self.skipped = 0
        """Lines that are no events: torn, foreign, or from a newer version."""
        self.at_end = False
        self.trouble: str | None = None
        """Why the file cannot be read; None where it can, or where there is none."""
        self._offset = 0
        self._partial = b""
        self._overlong = False
        self._kept_bytes = 0

    @property
    def position(self) -> int:
        """Bytes read so far."""
        return self._offset

    def read(self, limit: int = CHUNK_BYTES) -> list[events.AnyEvent]:
        if self._offset >= MAX_FILE_BYTES or self.skipped >= MAX_SKIPPED:
            self.at_end = True
            return []
        try:
            with open_regular(self.path) as file:
                file.seek(self._offset)
                data = file.read(limit)
        except OSError as error:
            self.at_end = True
            self.trouble = None if isinstance(error, FileNotFoundError) else error.strerror
            return []
        self.trouble = None
        self.at_end = len(data) < limit
        self._offset += len(data)
        lines = (self._partial + data).split(b"\n")
        self._partial = lines.pop()
        found = []
        for line in lines:
            if self._overlong or len(line) > MAX_LINE:
                self._overlong = False
                self.skipped += 1
            elif line and (event := self._decode(line)) is not None:
                found.append(event)
        if len(self._partial) > MAX_LINE:
            self._partial, self._overlong = b"", True
        return found

    def _decode(self, line: bytes) -> events.AnyEvent | None:
        try:
            event = events.decode(line)
        except (ValueError, RecursionError):  # msgspec's own are ValueErrors
            self.skipped += 1
            return None
        if type(event) not in _NOT_COUNTED:
            self._kept_bytes += len(line)
            if self._kept_bytes > self._max_kept_bytes:
                return None
        return event


def rank_of(path: Path) -> tuple[int, bool]:
    """Which rank wrote this file, and whether as that rank's first process."""
    return rank_in(path.name)


def replay(run: RunFolder | Path) -> Iterator[Entry]:
    """Every event of a run in order: the supervisor's, with the ranks' events of each attempt where they belong."""
    run = run if isinstance(run, RunFolder) else RunFolder(run)
    if not os.path.isfile(run.journal):  # noqa: PTH113 - False, too, where it may not be looked at
        raise JournalUnreadable(
            f"{run.path} has no journal.", next_step="give the folder of a run", look_at=str(run.path)
        )
    attempt = attempts = 0
    budget = _Budget(run.path)
    ranks = _Ahead(iter(()))
    for event in _read_journal(run.journal, budget):
        if isinstance(event, events.RunStarted) and event.schema > events.SCHEMA:
            raise JournalUnreadable(
                f"{run.journal} has schema {event.schema}; this Holdfast reads up to {events.SCHEMA}.",
                next_step="use the Holdfast that wrote it, or a newer one",
            )
        if isinstance(event, events.AttemptStarted):
            yield from ranks.rest()
            attempt, attempts = event.attempt, attempts + 1
            if attempts > MAX_ATTEMPTS:
                raise JournalUnreadable(
                    f"{run.journal} tells of more than {MAX_ATTEMPTS:,} attempts: no run of Holdfast has so many.",
                    next_step="give the folder of a run as Holdfast wrote it",
                )
            ranks = _Ahead(_ranks(run, attempt, budget))
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


class _Budget:
    """How much may still be read of a run."""

    def __init__(self, run: Path) -> None:
        self._run = run
        self._left = MAX_RUN_BYTES

    def spend(self, amount: int) -> None:
        self._left -= amount
        if self._left < 0:
            raise JournalUnreadable(
                f"{self._run} holds more than {MAX_RUN_BYTES >> 30} GiB of events: no run of Holdfast has so many.",
                next_step="give the folder of a run as Holdfast wrote it",
            )


def _ranks(run: RunFolder, attempt: int, budget: _Budget) -> Iterator[Entry]:
    folder = run.attempt(attempt)
    files = folder.rank_files()
    chunk = min(CHUNK_BYTES, max(MIN_CHUNK_BYTES, MAX_HELD_BYTES // (len(files) + 1)))
    interpreters = _read(Tail(folder.interpreters), budget, chunk)
    streams: list[Iterable[Entry]] = [(Entry(event, attempt) for event in interpreters)]
    streams += [_rank(path, attempt, budget, chunk) for path in files]
    return heapq.merge(*streams, key=lambda entry: entry.event.at)


def _rank(path: Path, attempt: int, budget: _Budget, chunk: int) -> Iterator[Entry]:
    rank, primary = rank_of(path)
    return (Entry(event, attempt, rank, primary) for event in _read(Tail(path), budget, chunk))


def _read_journal(path: Path, budget: _Budget) -> Iterator[events.AnyEvent]:
    """Other than a rank's file, it has to be there."""
    tail = Tail(path, MAX_SUPERVISOR_BYTES)
    yield from _read(tail, budget)
    if tail.trouble is not None:
        raise JournalUnreadable(
            f"{path} cannot be read: {tail.trouble}.",
            next_step="give the folder of a run that you may read",
            look_at=str(path),
        )


def _read(tail: Tail, budget: _Budget, chunk: int = CHUNK_BYTES) -> Iterator[events.AnyEvent]:
    while not tail.at_end:
        before = tail.position
        yield from tail.read(chunk)
        budget.spend(tail.position - before)

"""The journal: an append-only file of events, one JSON line each.

Only the supervisor writes `journal.jsonl`. Each rank of the training writes its own file under `attempts/<n>/`.
Together they are the record of the run, and `replay` returns them as one stream in chronological order. A truncated
line (a kill or a full disk during a write) is skipped and counted; it is never an error.
"""

from __future__ import annotations

import heapq
import os
from collections import deque
from typing import TYPE_CHECKING, NamedTuple

from holdfast.schema import events
from holdfast.schema.errors import FolderNotWritable, JournalUnreadable
from holdfast.schema.shell_text import shell_quote
from holdfast.storage.disk_reserve import Reserve
from holdfast.storage.folder import RunFolder, parse_rank_file_name
from holdfast.storage.safe_files import HardLinkedFile, open_handle, open_regular

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

MAX_LINE = 1 << 20
"""A longer line is not an event of Holdfast. It is skipped without being kept in memory."""
MAX_FILE_BYTES = 1 << 30
"""Per file. A million steps take at most 64 MB, and a month of samples less than half of this."""
MAX_RUN_BYTES = 8 << 30
"""For all files of a run: a hundred times a million steps, or a million steps of a hundred ranks."""
MAX_KEPT_BYTES = 128 << 20
"""For those events in one file that readers keep individually. A probe writes 4 MB of them, plus 10 bytes per step."""
MAX_SUPERVISOR_BYTES = 32 << 20
"""The same for the supervisor's file, which contains no step events."""
MAX_SKIPPED = 100_000
"""Lines of one file that are not events. A file with more was not written by Holdfast."""
MAX_ATTEMPTS = 10_000
CHUNK_BYTES = 4 << 20
MIN_CHUNK_BYTES = 128 << 10
MAX_HELD_BYTES = 64 << 20
"""Memory for the read-ahead of all rank files together, while they are merged."""
_NOT_COUNTED = frozenset(
    (
        *(events.Step, events.Steps, events.Sample, events.Memory, events.Checksum, events.Gradients),
        *(events.RunStarted, events.RunContinued, events.RunEnded, events.AttemptStarted, events.AttemptEnded),
    )
)
"""Events of which readers keep only sums and a few examples, or one per attempt."""
PENDING_EVENTS = 10_000
"""Maximum number of events kept in memory while the disk is full; the oldest are dropped first."""


class Entry(NamedTuple):
    """An event, with the attempt and rank that recorded it."""

    event: events.AnyEvent
    attempt: int
    rank: int | None = None
    """None for events of the supervisor."""
    primary: bool = True


class JournalWriter:
    """Appends events. While the disk is full, they wait in memory. At the end, the disk reserve makes room for them."""

    def __init__(self, path: Path) -> None:
        flags = os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
        try:
            self._handle = open_handle(path, flags)
        except OSError as error:
            is_linked = isinstance(error, HardLinkedFile)
            raise FolderNotWritable(
                f"Cannot write to the journal {path}: {error.strerror}.",
                next_step=f"copy the run (cp -r {shell_quote(path.parent)} COPY), which removes the hard link, and resume the copy"
                if is_linked
                else "free some disk space, or choose another folder with --dir DIR",
            ) from error
        self._reserve = Reserve(path.with_name("reserve"))
        self._pending: deque[bytes] = deque(maxlen=PENDING_EVENTS)
        size = os.fstat(self._handle).st_size
        self._ends_mid_line = size > 0 and os.pread(self._handle, 1, size - 1) != b"\n"
        self.trouble: str | None = None
        """Why the last write failed; None if everything is written."""

    def append(self, event: events.Event) -> None:
        self._pending.append(events.encode(event) + b"\n")
        self.flush()

    def flush(self) -> bool:
        """Write the pending events. Return True if none are left."""
        while self._pending:
            line = (b"\n" if self._ends_mid_line else b"") + self._pending[0]
            try:
                written = os.write(self._handle, line)
            except OSError as error:
                self.trouble = error.strerror
                return False
            if written < len(line):
                self._ends_mid_line = line[:written][-1:] not in (b"\n", b"") or (self._ends_mid_line and written == 0)
                self.trouble = "only part of a line was written"
                return False
            self._ends_mid_line = False
            self._pending.popleft()
        self.trouble = None
        return True

    def sync(self) -> None:
        try:
            os.fsync(self._handle)
        except OSError as error:
            self.trouble = error.strerror

    def close(self) -> None:
        self._reserve.release()
        self.flush()
        os.close(self._handle)


class Tail:
    """Reads what was appended to an event file since the last call, up to a limit per call."""

    def __init__(self, path: Path, max_kept_bytes: int | None = None) -> None:
        self.path = path
        self._max_kept_bytes = MAX_KEPT_BYTES if max_kept_bytes is None else max_kept_bytes
        self.skipped = 0
        """Number of lines that are not events: truncated, foreign, or from a newer version."""
        self.at_end = False
        self.trouble: str | None = None
        """Why the file cannot be read; None if it can, or if it does not exist."""
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
        decoded = []
        for line in lines:
            if self._overlong or len(line) > MAX_LINE:
                self._overlong = False
                self.skipped += 1
            elif line and (event := self._decode(line)) is not None:
                decoded.append(event)
        if len(self._partial) > MAX_LINE:
            self._partial, self._overlong = b"", True
        return decoded

    def _decode(self, line: bytes) -> events.AnyEvent | None:
        try:
            event = events.decode(line)
        except (ValueError, RecursionError):  # msgspec errors are ValueErrors
            self.skipped += 1
            return None
        if type(event) not in _NOT_COUNTED:
            self._kept_bytes += len(line)
            if self._kept_bytes > self._max_kept_bytes:
                return None
        return event


def rank_of(path: Path) -> tuple[int, bool]:
    """Return the rank that wrote this file, and whether it was the rank's first process."""
    return parse_rank_file_name(path.name)


def replay(run: RunFolder | Path) -> Iterator[Entry]:
    """Return every event of a run in order: those of the supervisor, merged with those of the ranks in each attempt."""
    return follow(run).read()


def follow(run: RunFolder | Path) -> Follower:
    """Return a reader that continues where it stopped: each `read` returns what was recorded since the last one."""
    return Follower(run if isinstance(run, RunFolder) else RunFolder(run))


class Follower:
    """Reads the record of a run as it grows. What was read is not read again."""

    def __init__(self, run: RunFolder) -> None:
        if not os.path.isfile(run.journal):  # noqa: PTH113 - also False without access permission
            raise JournalUnreadable(f"{run.path} has no journal.", next_step="pass a run folder", look_at=str(run.path))
        self._run = run
        self._budget = _Budget(run.path)
        self._journal = Tail(run.journal, MAX_SUPERVISOR_BYTES)
        self._ranks: dict[Path, Tail] = {}
        """The event files of the current attempt."""
        self._attempt = self._attempts = 0

    def read(self) -> Iterator[Entry]:
        """Yield the events since the last call. Call it again only after the iterator is exhausted."""
        ranks = self._read_ranks()
        for event in _read_all(self._journal, self._budget):
            if isinstance(event, events.RunStarted):
                self._refuse_newer_schema(event)
            if isinstance(event, (events.AttemptStarted, events.AttemptEnded, events.RunContinued)):
                yield from ranks.remaining()
            else:
                yield from ranks.until(event.at)
            if isinstance(event, events.AttemptStarted):
                self._start_attempt(event)
                ranks = self._read_ranks()
            yield Entry(event, self._attempt)
        yield from ranks.remaining()
        if self._journal.trouble is not None:  # unlike the file of a rank, the supervisor's must be readable
            raise JournalUnreadable(
                f"{self._journal.path} cannot be read: {self._journal.trouble}.",
                next_step="pass a run folder that you have permission to read",
                look_at=str(self._journal.path),
            )

    def _refuse_newer_schema(self, started: events.RunStarted) -> None:
        if started.schema > events.SCHEMA:
            raise JournalUnreadable(
                f"{self._run.journal} has schema version {started.schema}; this version of Holdfast supports up to {events.SCHEMA}.",
                next_step="use the version of Holdfast that wrote it, or a newer one",
            )

    def _start_attempt(self, started: events.AttemptStarted) -> None:
        self._attempt, self._attempts, self._ranks = started.attempt, self._attempts + 1, {}
        if self._attempts > MAX_ATTEMPTS:
            raise JournalUnreadable(
                f"{self._run.journal} contains more than {MAX_ATTEMPTS:,} attempts, which Holdfast never writes.",
                next_step="pass an unmodified run folder",
            )

    def _read_ranks(self) -> _PeekableEntries:
        """Return what the processes of the current attempt have recorded since the last call, in order of time."""
        if not self._attempt:
            return _PeekableEntries(iter(()))
        folder = self._run.attempt(self._attempt)
        files = [folder.interpreters, *folder.rank_files()]
        chunk = min(CHUNK_BYTES, max(MIN_CHUNK_BYTES, MAX_HELD_BYTES // len(files)))
        streams = [self._read_rank(path, folder.interpreters, chunk) for path in files]
        return _PeekableEntries(heapq.merge(*streams, key=lambda entry: entry.event.at))

    def _read_rank(self, path: Path, interpreters: Path, chunk: int) -> Iterator[Entry]:
        rank, primary = (None, True) if path == interpreters else rank_of(path)
        tail = self._ranks.setdefault(path, Tail(path))
        return (Entry(event, self._attempt, rank, primary) for event in _read_all(tail, self._budget, chunk))


class _PeekableEntries:
    """An iterator of entries that can be read up to a given time."""

    def __init__(self, entries: Iterator[Entry]) -> None:
        self._entries = entries
        self._next = next(entries, None)

    def until(self, at: float) -> Iterator[Entry]:
        while self._next is not None and self._next.event.at <= at:
            yield self._next
            self._next = next(self._entries, None)

    def remaining(self) -> Iterator[Entry]:
        yield from self.until(float("inf"))


class _Budget:
    """The number of bytes that may still be read of a run."""

    def __init__(self, run: Path) -> None:
        self._run = run
        self._left = MAX_RUN_BYTES

    def spend(self, amount: int) -> None:
        self._left -= amount
        if self._left < 0:
            raise JournalUnreadable(
                f"{self._run} contains more than {MAX_RUN_BYTES >> 30} GiB of events, which Holdfast never writes.",
                next_step="pass an unmodified run folder",
            )


def _read_all(tail: Tail, budget: _Budget, chunk: int = CHUNK_BYTES) -> Iterator[events.AnyEvent]:
    """Yield the events up to the present end of a file."""
    tail.at_end = False
    while not tail.at_end:
        before = tail.position
        yield from tail.read(chunk)
        budget.spend(tail.position - before)

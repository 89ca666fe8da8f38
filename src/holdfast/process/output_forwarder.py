"""Threads that record and show what the child prints: one for each place where it is shown.

A pump holds the child back when its place takes no more (a paused terminal, a full pipe), and holds back nothing else: not
other places, not the supervisor's loop, not the end of an attempt.
"""

from __future__ import annotations

import os
import select
import threading
from typing import TYPE_CHECKING

from holdfast.process.signals import start_thread
from holdfast.process.sink import CHUNK_BYTES, Bell, Flow, Sink

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from holdfast.process.output_log import OutputLog
    from holdfast.process.output_matcher import StreamMatcher

TAIL_BYTES = 1 << 17
SETTLE_SECONDS = 0.05
STUCK_SECONDS = 1.0


class Source:
    """One stream of the child. Without a log it is only shown: that is the echo of what the user types."""

    def __init__(self, stream: int, fd: int, log: OutputLog | None) -> None:
        self.stream = stream
        self.fd = fd
        self._log = log
        self._tail = bytearray()
        self._tail_lock = threading.Lock()
        self._watch: StreamMatcher | None = None
        self.last_byte_at = 0.0

    def read(self) -> bytes | None:
        """None when there is nothing just now, empty at the end. Gathered, since a terminal gives 4 KB at a time."""
        data = bytearray()
        try:
            while len(data) < CHUNK_BYTES and (piece := os.read(self.fd, CHUNK_BYTES)):
                data += piece
        except BlockingIOError:
            return bytes(data) or None
        except OSError:  # EIO: how Linux says that the other end of a terminal is closed; macOS reads nothing
            pass
        return bytes(data)

    def record(self, data: bytes, now: float) -> None:
        if self._log is None:
            return
        self.last_byte_at = now
        self._log.write(data)
        with self._tail_lock:
            self._tail += data
            if len(self._tail) > 2 * TAIL_BYTES:
                line_end = self._tail.find(b"\n", len(self._tail) - TAIL_BYTES)
                del self._tail[: line_end + 1 if line_end >= 0 else len(self._tail) - TAIL_BYTES]
            if self._watch is not None:
                self._watch.feed(data)

    def watch(self, watch: StreamMatcher) -> None:
        """Have every line looked at, those that were printed already too."""
        with self._tail_lock:
            self._watch = watch
            watch.feed(bytes(self._tail))

    def tail(self) -> bytes:
        """The last output, at most 256 KB, from the beginning of a line."""
        with self._tail_lock:
            return bytes(self._tail)

    def close(self) -> None:
        if self._watch is not None:
            self._watch.finish()
        if self._log is not None:
            self._log.close()


class OutputForwarder:
    """Carries the streams that are shown in one place."""

    def __init__(self, sources: Sequence[Source], sink: Sink, flow: Flow, clock: Callable[[], float]) -> None:
        self._sources = list(sources)
        self._closing = list(sources)
        self._sink = sink
        self._flow = flow
        self._clock = clock
        self._bell = Bell()
        self._line_of: Source | None = None
        self._finishing = False
        self._abandoned = False
        self.showing_since: float | None = None
        self.thread = start_thread("holdfast output", self._run)

    def finish(self) -> None:
        """No more is expected than what can be read by now."""
        self._finishing = True
        self._bell.ring()

    def stop_showing(self) -> None:
        self._sink.give_up()
        self._flow.resume()

    def abandon(self) -> None:
        """Whatever still comes is somebody else's: a process that outlived the child."""
        self._abandoned = True
        self._bell.ring()

    def closed(self) -> bool:
        """Lets go of everything, unless the thread could not be ended."""
        self.thread.join(STUCK_SECONDS)
        if self.thread.is_alive():
            return False
        self._sink.close()
        self._bell.close()
        for source in self._closing:
            source.close()
        return True

    def _run(self) -> None:
        while self._sources and not self._abandoned:
            patience = SETTLE_SECONDS if self._finishing else None
            ready, _, _ = select.select([*(source.fd for source in self._sources), self._bell.fd], [], [], patience)
            if not ready and self._finishing:
                return
            if self._bell.fd in ready:
                self._bell.silence()
            talking = [source for source in self._sources if source.fd in ready]
            for source in in_turn(talking, self._line_of):
                self._carry(source)

    def _carry(self, source: Source) -> None:
        data = source.read()
        if data:
            self._deliver(source, data)
        elif data is not None:
            self._sources.remove(source)

    def _deliver(self, source: Source, data: bytes) -> None:
        now = self._clock()
        source.record(data, now)
        self.showing_since = now
        self._flow.wait()
        self._sink.write(data)
        self.showing_since = None
        self._line_of = None if data.endswith(b"\n") else source


def in_turn(talking: Sequence[Source], line_of: Source | None) -> list[Source]:
    """The kernel does not tell which of two streams was written first when both have something. Then the one that has begun
    a line goes first (a progress bar is ended before the next print), else the echo, stdout, stderr.
    """
    return sorted(talking, key=lambda source: (source is not line_of, source.stream))

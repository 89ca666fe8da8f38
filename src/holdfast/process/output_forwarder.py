"""Threads that record and show the child's output: one for each destination.

A forwarder blocks the child while its destination is blocked (a paused terminal, a full pipe). It blocks nothing else:
not other destinations, not the supervisor's loop, not the end of an attempt.
"""

from __future__ import annotations

import os
import select
import threading
from typing import TYPE_CHECKING

from holdfast.process.signals import start_thread
from holdfast.process.sink import CHUNK_BYTES, Flow, Sink, WakeupPipe

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from holdfast.process.output_log import OutputLog
    from holdfast.process.output_matcher import StreamMatcher

TAIL_BYTES = 1 << 17
SETTLE_SECONDS = 0.05
JOIN_SECONDS = 1.0


class Source:
    """One stream of the child. A stream without a log is only shown: the echo of what the user types."""

    def __init__(self, stream: int, fd: int, log: OutputLog | None) -> None:
        self.stream = stream
        self.fd = fd
        self._log = log
        self._tail = bytearray()
        self._tail_lock = threading.Lock()
        self._matcher: StreamMatcher | None = None
        self.last_byte_at = 0.0

    def read(self) -> bytes | None:
        """Return the available bytes, None if there are none yet, or empty bytes at the end.

        Several reads are joined, since a terminal returns 4 KB at a time.
        """
        data = bytearray()
        try:
            while len(data) < CHUNK_BYTES and (piece := os.read(self.fd, CHUNK_BYTES)):
                data += piece
        except BlockingIOError:
            return bytes(data) or None
        except OSError:  # EIO: Linux reports that the other end of a terminal is closed; macOS returns no bytes
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
            if self._matcher is not None:
                self._matcher.feed(data)

    def watch(self, matcher: StreamMatcher) -> None:
        """Pass every line to the matcher, including those already printed."""
        with self._tail_lock:
            self._matcher = matcher
            matcher.feed(bytes(self._tail))

    def tail(self) -> bytes:
        """Return the last output, at most 256 KB, from the start of a line."""
        with self._tail_lock:
            return bytes(self._tail)

    def close(self) -> None:
        if self._matcher is not None:
            self._matcher.finish()
        if self._log is not None:
            self._log.close()


class OutputForwarder:
    """Forwards the streams that are shown at the same destination."""

    def __init__(self, sources: Sequence[Source], sink: Sink, flow: Flow, clock: Callable[[], float]) -> None:
        self._sources = list(sources)
        self._all_sources = list(sources)
        self._sink = sink
        self._flow = flow
        self._clock = clock
        self._wakeup = WakeupPipe()
        self._open_line_source: Source | None = None
        self._finishing = False
        self._abandoned = False
        self.showing_since: float | None = None
        self.thread = start_thread("holdfast output", self._run)

    def finish(self) -> None:
        """Stop once everything that can be read has been forwarded."""
        self._finishing = True
        self._wakeup.notify()

    def stop_showing(self) -> None:
        self._sink.cancel()
        self._flow.resume()

    def abandon(self) -> None:
        """Stop now. Output that still arrives is from a process that outlived the child."""
        self._abandoned = True
        self._wakeup.notify()

    def try_close(self) -> bool:
        """Close everything. Return False, and close nothing, if the thread could not be stopped."""
        self.thread.join(JOIN_SECONDS)
        if self.thread.is_alive():
            return False
        self._sink.close()
        self._wakeup.close()
        for source in self._all_sources:
            source.close()
        return True

    def _run(self) -> None:
        while self._sources and not self._abandoned:
            timeout = SETTLE_SECONDS if self._finishing else None
            ready, _, _ = select.select([*(source.fd for source in self._sources), self._wakeup.fd], [], [], timeout)
            if not ready and self._finishing:
                return
            if self._wakeup.fd in ready:
                self._wakeup.clear()
            readable = [source for source in self._sources if source.fd in ready]
            for source in order_sources(readable, self._open_line_source):
                self._forward(source)

    def _forward(self, source: Source) -> None:
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
        self._open_line_source = None if data.endswith(b"\n") else source


def order_sources(readable: Sequence[Source], open_line_source: Source | None) -> list[Source]:
    """Return the order in which to forward the sources that can be read.

    If two streams have data, the kernel does not report which was written first. The source with an unterminated line
    goes first (a progress bar is completed before the next print), then the echo, stdout, stderr.
    """
    return sorted(readable, key=lambda source: (source is not open_line_source, source.stream))

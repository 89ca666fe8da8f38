"""Threads that carry bytes between the child and the user: one for each stream, and one for the keyboard.

A pump that shows output holds the child back when the user's terminal or pipe is full, and nothing else: not the other
streams, not the supervisor's loop, not the end of an attempt.
"""

from __future__ import annotations

import contextlib
import os
import select
import stat
import sys
import threading
from typing import TYPE_CHECKING

from holdfast.observe.notices import Interrupt, Suspend
from holdfast.observe.signals import start_thread
from holdfast.observe.terminal import STDIN

if TYPE_CHECKING:
    from collections.abc import Callable

    from holdfast.observe.output_log import OutputLog
    from holdfast.observe.terminal import ChildTerminal, Terminal

CHUNK_BYTES = 1 << 16
TAIL_BYTES = 1 << 17
SETTLE_SECONDS = 0.05
KEYS_HELD_SECONDS = 1.0
STUCK_SECONDS = 1.0


class Bell:
    """Wakes a thread that sleeps in select. Once rung it stays rung until it is silenced."""

    def __init__(self) -> None:
        self.fd, self._rope = os.pipe()
        os.set_blocking(self.fd, False)
        os.set_blocking(self._rope, False)

    def ring(self) -> None:
        with contextlib.suppress(BlockingIOError):
            os.write(self._rope, b"\0")

    def silence(self) -> None:
        with contextlib.suppress(BlockingIOError):
            os.read(self.fd, CHUNK_BYTES)

    def close(self) -> None:
        os.close(self.fd)
        os.close(self._rope)


class Flow:
    """Ctrl-S and Ctrl-Q: whether output may be shown. The child's terminals know nothing of each other, so we keep it."""

    def __init__(self) -> None:
        self._flowing = threading.Event()
        self._flowing.set()

    def pause(self) -> None:
        self._flowing.clear()

    def resume(self) -> None:
        self._flowing.set()

    def wait(self) -> None:
        self._flowing.wait()


class Sink:
    """Where output is shown: the user's terminal, pipe or file. A sink that is gone swallows what it is given."""

    def __init__(self, stream: int) -> None:
        self._fd, self._own = _own_description(stream)
        kind = os.fstat(self._fd).st_mode
        # What we share with other programs must not be made non-blocking, so it is written in pieces that surely fit.
        self._may_block = not self._own and not stat.S_ISREG(kind)
        self._piece = select.PIPE_BUF if self._may_block else CHUNK_BYTES
        self._given_up = Bell()
        self._gone = False

    def write(self, data: bytes) -> None:
        rest = memoryview(data)
        try:
            while rest and not self._gone:
                if self._may_block and not self._wait_for_room():
                    return
                try:
                    rest = rest[os.write(self._fd, rest[: self._piece]) :]
                except BlockingIOError:
                    if not self._wait_for_room():
                        return
        except OSError:  # EIO: the terminal was closed; EPIPE: nobody reads any more
            self._gone = True

    def give_up(self) -> None:
        """Ends a write that waits for room, and shows nothing from now on. From any thread."""
        self._gone = True
        self._given_up.ring()

    def close(self) -> None:
        os.close(self._fd)
        self._given_up.close()

    def _wait_for_room(self) -> bool:
        _, writable, _ = select.select([self._given_up.fd], [self._fd], [])
        return bool(writable) and not self._gone


class OutputPump:
    """Records and shows one stream of the child."""

    def __init__(
        self,
        stream: int,
        source: int,
        sink: Sink,
        *,
        log: OutputLog | None,
        flow: Flow,
        clock: Callable[[], float],
    ) -> None:
        self.stream = stream
        self._source = source
        self._sink = sink
        self._log = log
        self._flow = flow
        self._clock = clock
        self._bell = Bell()
        self._finishing = False
        self._abandoned = False
        self._tail = bytearray()
        self._tail_lock = threading.Lock()
        self.last_byte_at: float | None = None
        self.showing_since: float | None = None
        self.thread = start_thread(f"holdfast stream {stream}", self._run)

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
        self.stop_showing()
        self.finish()

    def tail(self) -> bytes:
        """The last output, at most 256 KB, from the beginning of a line."""
        with self._tail_lock:
            return bytes(self._tail)

    def closed(self) -> bool:
        """Lets go of everything, unless the thread could not be ended."""
        self.thread.join(STUCK_SECONDS)
        if self.thread.is_alive():
            return False
        self._sink.close()
        self._bell.close()
        if self._log is not None:
            self._log.close()
        return True

    def _run(self) -> None:
        while not self._abandoned:
            patience = SETTLE_SECONDS if self._finishing else None
            ready, _, _ = select.select([self._source, self._bell.fd], [], [], patience)
            if self._source in ready:
                try:
                    data = os.read(self._source, CHUNK_BYTES)
                except BlockingIOError:
                    continue
                except OSError:  # EIO: how Linux says that the other end of a terminal is closed; macOS reads nothing
                    return
                if not data:
                    return
                self._deliver(data)
            elif self._bell.fd in ready:
                self._bell.silence()
            elif self._finishing:
                return

    def _deliver(self, data: bytes) -> None:
        self.last_byte_at = self._clock()
        if self._log is not None:
            self._log.write(data)
            self._remember(data)
        self.showing_since = self._clock()
        self._flow.wait()
        self._sink.write(data)
        self.showing_since = None

    def _remember(self, data: bytes) -> None:
        with self._tail_lock:
            self._tail += data
            if len(self._tail) > 2 * TAIL_BYTES:
                line_end = self._tail.find(b"\n", len(self._tail) - TAIL_BYTES)
                del self._tail[: line_end + 1 if line_end >= 0 else len(self._tail) - TAIL_BYTES]


class KeyboardPump:
    """Carries what the user types to the child's terminal, and tells the loop what concerns the supervisor as well."""

    def __init__(self, terminal: Terminal, child_terminal: ChildTerminal, flow: Flow) -> None:
        self._terminal = terminal
        self._child_terminal = child_terminal
        self._flow = flow
        self._bell = Bell()
        self._listening = False
        self._closing = False
        os.set_blocking(child_terminal.our_end, False)
        self.thread = start_thread("holdfast keyboard", self._run)

    @property
    def listening(self) -> bool:
        return self._listening

    def listen(self) -> None:
        self._listening = True
        self._bell.ring()

    def pause(self) -> None:
        self._listening = False
        self._bell.ring()

    def close(self) -> None:
        self._closing = True
        self._bell.ring()
        self.thread.join()
        self._bell.close()

    def end_input(self) -> None:
        """The keyboard is gone for good: a child that asks is told so, instead of waiting for ever."""
        with contextlib.suppress(OSError):
            os.write(self._child_terminal.our_end, self._child_terminal.keys().end_of_file)

    def _run(self) -> None:
        while not self._closing:
            sources = [self._bell.fd, STDIN] if self._listening else [self._bell.fd]
            ready, _, _ = select.select(sources, [], [])
            if self._bell.fd in ready:
                self._bell.silence()
            elif not self._carry():
                self._listening = False

    def _carry(self) -> bool:
        """False when the keyboard is not ours any more; the loop will see when it is again."""
        if not self._terminal.in_foreground():
            return False
        try:
            typed = os.read(STDIN, CHUNK_BYTES)
        except OSError:
            return False
        keys = self._child_terminal.keys()
        if keys.any_resumes:
            self._flow.resume()
        data = bytearray()
        for value in typed:
            meaning = keys.meanings.get(value)
            if meaning is None:
                data.append(value)
                continue
            self._write(bytes(data))
            data.clear()
            if meaning == "suspend":
                self._terminal.inbox.post(Suspend(whole_job=True))
                return False
            if meaning == "pause":
                self._flow.pause()
            else:
                self._flow.resume()
            if meaning == "interrupt":
                self._interrupt(bytes([value]))
        self._write(bytes(data))
        return bool(typed)

    def _interrupt(self, key: bytes) -> None:
        delivered = self._has_room()
        # Told before it is done, so that the loop hears of it before it hears of the exit that follows.
        self._terminal.inbox.post(Interrupt(delivered=delivered))
        if delivered:
            self._write(key)

    def _write(self, data: bytes) -> None:
        """What a child that never reads has no room for is dropped, as a terminal does."""
        with contextlib.suppress(OSError):
            while data and self._has_room():
                data = data[os.write(self._child_terminal.our_end, data) :]

    def _has_room(self) -> bool:
        return bool(select.select([], [self._child_terminal.our_end], [], KEYS_HELD_SECONDS)[1])


def _own_description(stream: int) -> tuple[int, bool]:
    """A descriptor for the same place. Where it could be opened anew it is ours alone, hence non-blocking."""
    flags = os.O_WRONLY | os.O_NOCTTY | os.O_NONBLOCK
    with contextlib.suppress(OSError):
        if os.isatty(stream):
            return os.open(os.ttyname(stream), flags), True
        if sys.platform == "linux" and stat.S_ISFIFO(os.fstat(stream).st_mode):
            return os.open(f"/proc/self/fd/{stream}", flags), True
    return os.dup(stream), False

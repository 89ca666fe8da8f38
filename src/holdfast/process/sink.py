"""Where output is shown, and the small things that let a thread wait for it without being stuck there."""

from __future__ import annotations

import contextlib
import os
import select
import stat
import sys
import threading

CHUNK_BYTES = 1 << 16


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
    """The user's terminal, pipe or file. A sink that is gone swallows what it is given."""

    def __init__(self, stream: int) -> None:
        self._fd, blocking = own_description(stream, os.O_WRONLY)
        # What we share with other programs must not be made non-blocking, so it is written in pieces that surely fit.
        self._may_block = blocking and not stat.S_ISREG(os.fstat(self._fd).st_mode)
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


def own_description(stream: int, access: int) -> tuple[int, bool]:
    """A descriptor for the same place, and whether it blocks: it does not where it could be opened anew, for us alone."""
    flags = access | os.O_NOCTTY | os.O_NONBLOCK
    with contextlib.suppress(OSError):
        if os.isatty(stream):
            return os.open(os.ttyname(stream), flags), False
        if sys.platform == "linux" and stat.S_ISFIFO(os.fstat(stream).st_mode):
            return os.open(f"/proc/self/fd/{stream}", flags), False
    return os.dup(stream), True

"""The destination of shown output, and helpers that let a thread wait for it without blocking forever."""

from __future__ import annotations

import contextlib
import os
import select
import stat
import sys
import threading

CHUNK_BYTES = 1 << 16


class WakeupPipe:
    """A pipe that wakes a thread out of select. It stays readable until `clear`."""

    def __init__(self) -> None:
        self.fd, self._write_fd = os.pipe()
        os.set_blocking(self.fd, False)
        os.set_blocking(self._write_fd, False)

    def notify(self) -> None:
        with contextlib.suppress(BlockingIOError):
            os.write(self._write_fd, b"\0")

    def clear(self) -> None:
        with contextlib.suppress(BlockingIOError):
            os.read(self.fd, CHUNK_BYTES)

    def close(self) -> None:
        os.close(self.fd)
        os.close(self._write_fd)


class Flow:
    """Ctrl-S and Ctrl-Q: whether output may be shown.

    Kept here, since the child's terminals do not know of each other.
    """

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
    """The user's terminal, pipe or file. Once it was closed, output to it is dropped."""

    def __init__(self, stream: int) -> None:
        self._fd, blocking = reopen_stream(stream, os.O_WRONLY)
        # A descriptor shared with other programs must not be made non-blocking, so write pieces that are sure to fit.
        self._may_block = blocking and not stat.S_ISREG(os.fstat(self._fd).st_mode)
        self._max_write = select.PIPE_BUF if self._may_block else CHUNK_BYTES
        self._cancelled = WakeupPipe()
        self._is_closed = False

    def write(self, data: bytes) -> None:
        rest = memoryview(data)
        try:
            while rest and not self._is_closed:
                if self._may_block and not self._wait_for_room():
                    return
                try:
                    rest = rest[os.write(self._fd, rest[: self._max_write]) :]
                except BlockingIOError:
                    if not self._wait_for_room():
                        return
        except OSError:  # EIO: the terminal was closed; EPIPE: the reader is gone
            self._is_closed = True

    def cancel(self) -> None:
        """Cancel a write that waits for room, and show nothing from now on. May be called from any thread."""
        self._is_closed = True
        self._cancelled.notify()

    def close(self) -> None:
        os.close(self._fd)
        self._cancelled.close()

    def _wait_for_room(self) -> bool:
        _, writable, _ = select.select([self._cancelled.fd], [self._fd], [])
        return bool(writable) and not self._is_closed


def reopen_stream(stream: int, access: int) -> tuple[int, bool]:
    """Return a descriptor for the same file, and whether it blocks.

    It does not block if it could be reopened separately.
    """
    flags = access | os.O_NOCTTY | os.O_NONBLOCK
    with contextlib.suppress(OSError):
        if os.isatty(stream):
            return os.open(os.ttyname(stream), flags), False
        if sys.platform == "linux" and stat.S_ISFIFO(os.fstat(stream).st_mode):
            return os.open(f"/proc/self/fd/{stream}", flags), False
    return os.dup(stream), True

"""The supervisor's three standard streams, the terminal behind them, and the signals that the supervisor receives.

While a child runs in the foreground, the user's terminal is in raw mode: it passes on every byte as it is typed (no
echo, no line editing, no signals). The child's pseudo-terminal does the usual input processing. The output settings of
the user's terminal are not changed.
"""

from __future__ import annotations

import atexit
import contextlib
import fcntl
import os
import signal
import struct
import termios
import time
from typing import TYPE_CHECKING, Any, NamedTuple

from holdfast.process.process_events import Continued, Forwarded, Hangup, Interrupt, ProcessEvent, Suspend, Terminate
from holdfast.process.signals import FORWARDED, SignalInbox

if TYPE_CHECKING:
    from types import TracebackType

    from typing_extensions import Self

STDIN, STDOUT, STDERR = 0, 1, 2
IFLAG, OFLAG, LFLAG, CC = 0, 1, 3, 6

_EVENTS: dict[signal.Signals, ProcessEvent] = {
    signal.SIGINT: Interrupt(delivered=False),
    signal.SIGTERM: Terminate(),
    signal.SIGTSTP: Suspend(whole_job=False),
    signal.SIGHUP: Hangup(),
}


class Terminal:
    """The user's terminal. The supervisor creates one and uses it as a context manager on its main thread."""

    def __init__(self) -> None:
        for stream in (STDIN, STDOUT, STDERR):
            _open_null_if_closed(stream)
        self.inbox = SignalInbox()
        self._before_claim: list[Any] | None = None

    def __enter__(self) -> Self:
        self.inbox.open()
        atexit.register(self.release)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.release()
        atexit.unregister(self.release)
        self.inbox.close()

    def wait(self, timeout: float) -> ProcessEvent | None:
        """Return the next request of the user while no child runs, between two attempts.

        Ctrl-Z stops the supervisor here.
        """
        deadline = time.monotonic() + timeout
        while True:
            message = self.inbox.take(deadline - time.monotonic())
            if message is None:
                return None
            event = to_event(message) if isinstance(message, signal.Signals) else message
            if isinstance(event, Suspend):
                stopped_at = time.monotonic()
                self.inbox.stop_self(whole_job=event.whole_job)
                return Continued(time.monotonic() - stopped_at)
            if event is not None and not isinstance(event, Forwarded):
                return event

    def in_foreground(self) -> bool:
        """Return whether Holdfast may read the keyboard.

        A terminal that is not its controlling terminal belongs to others.
        """
        try:
            return os.tcgetpgrp(STDIN) == os.getpgrp()
        except OSError:
            return False

    def is_gone(self) -> bool:
        """Return whether the terminal was closed. SIGHUP alone does not prove it: other programs send it as well."""
        try:
            termios.tcgetattr(STDIN)
        except termios.error:
            return True
        return False

    @property
    def is_claimed(self) -> bool:
        return self._before_claim is not None

    def claim(self) -> bool:
        """Switch the terminal to raw mode for the child, if Holdfast is in the foreground.

        Call it again after a suspend.
        """
        if not self.in_foreground():
            self._before_claim = None
            return False
        try:
            before = self._before_claim or termios.tcgetattr(STDIN)
            termios.tcsetattr(STDIN, termios.TCSANOW, _make_raw(before))
        except termios.error:  # it was closed in the meantime
            return False
        self._before_claim = before
        return True

    def release(self) -> None:
        """Restore the user's terminal. Not from the background, since the terminal is the shell's then."""
        if self._before_claim is not None and self.in_foreground():
            with contextlib.suppress(termios.error):
                termios.tcsetattr(STDIN, termios.TCSANOW, self._before_claim)
        self._before_claim = None

    def modes(self, stream: int) -> list[Any] | None:
        """Return the modes of the stream's terminal, or None while a shell in the foreground may have changed them."""
        if self._before_claim is not None and stream == STDIN:
            return self._before_claim
        try:
            return termios.tcgetattr(stream) if os.tcgetpgrp(stream) == os.getpgrp() else None
        except (OSError, termios.error):
            return None

    def window(self) -> bytes | None:
        """Return the window size as a packed `struct winsize`."""
        for stream in (STDIN, STDOUT, STDERR):
            with contextlib.suppress(OSError):
                return fcntl.ioctl(stream, termios.TIOCGWINSZ, bytes(struct.calcsize("HHHH")))
        return None


class Keys(NamedTuple):
    meanings: dict[int, str]
    """Byte -> "interrupt", "suspend", "pause" or "resume"."""
    any_resumes: bool
    """Whether any key resumes paused output."""
    end_of_file: bytes
    """The end-of-file byte for a child that reads lines; empty if it reads bytes."""


class ChildTerminal:
    """A pseudo-terminal for one stream of the child.

    The child's end stays open here too. The kernel then reports no end of output while there is data to read, and a
    child that closes its streams can reopen /dev/tty. Output passes through unprocessed, since the user's terminal
    processes it.
    """

    def __init__(self, modes: list[Any] | None, window: bytes | None) -> None:
        self.parent_end, self.child_end = os.openpty()
        modes = modes or termios.tcgetattr(self.child_end)
        modes = [*modes[:OFLAG], modes[OFLAG] & ~termios.OPOST, *modes[OFLAG + 1 :]]
        termios.tcsetattr(self.child_end, termios.TCSANOW, modes)
        self._last_modes = modes
        self._disabled = os.fpathconf(self.child_end, "PC_VDISABLE") & 0xFF
        if window is not None:
            self.resize(window)

    def resize(self, window: bytes) -> None:
        with contextlib.suppress(OSError):
            fcntl.ioctl(self.parent_end, termios.TIOCSWINSZ, window)

    def keys(self) -> Keys:
        """Return what single bytes mean in the current modes of the child's terminal.

        For a full-screen program all are data.
        """
        modes = self._read_modes()
        meanings = {}
        if modes[LFLAG] & termios.ISIG:
            meanings.update({termios.VINTR: "interrupt", termios.VSUSP: "suspend"})
        if modes[IFLAG] & termios.IXON:
            meanings.update({termios.VSTOP: "pause", termios.VSTART: "resume"})
        by_byte = {modes[CC][index][0]: meaning for index, meaning in meanings.items()}
        by_byte.pop(self._disabled, None)
        end_of_file = modes[CC][termios.VEOF] if modes[LFLAG] & termios.ICANON else b""
        return Keys(by_byte, any_resumes=bool(modes[IFLAG] & termios.IXANY), end_of_file=end_of_file)

    def _read_modes(self) -> list[Any]:
        with contextlib.suppress(termios.error):
            self._last_modes = termios.tcgetattr(self.child_end)
        return self._last_modes

    def close(self) -> None:
        os.close(self.parent_end)
        os.close(self.child_end)


def to_event(number: signal.Signals) -> ProcessEvent | None:
    """Return the event that a signal to the supervisor stands for, or None for signals that only wake it."""
    if number in FORWARDED:
        return Forwarded(number.name)
    return _EVENTS.get(number)


def _make_raw(modes: list[Any]) -> list[Any]:
    translations = (
        termios.BRKINT | termios.ICRNL | termios.INLCR | termios.IGNCR | termios.ISTRIP | termios.IXON | termios.PARMRK
    )
    raw = [*modes[:CC], list(modes[CC])]
    raw[IFLAG] &= ~translations
    raw[LFLAG] &= ~(termios.ECHO | termios.ECHONL | termios.ICANON | termios.ISIG | termios.IEXTEN)
    raw[CC][termios.VMIN] = 1
    raw[CC][termios.VTIME] = 0
    return raw


def _open_null_if_closed(stream: int) -> None:
    """Open /dev/null for a stream that was closed at startup, or the next opened file would get its descriptor."""
    try:
        os.fstat(stream)
    except OSError:
        null = os.open(os.devnull, os.O_RDWR)
        if null != stream:
            os.dup2(null, stream)
            os.close(null)

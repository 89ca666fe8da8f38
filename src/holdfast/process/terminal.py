"""The user's side: the three standard streams, the terminal behind them, and the signals that reach the supervisor.

While a child runs in the foreground, the keyboard belongs to it: the user's terminal hands over every byte as it is typed
(no echo, no line editing, no signals), and the child's own terminal does with it what a terminal does. The output side of
the user's terminal is left as it is.
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

_MEANINGS: dict[signal.Signals, ProcessEvent] = {
    signal.SIGINT: Interrupt(delivered=False),
    signal.SIGTERM: Terminate(),
    signal.SIGTSTP: Suspend(whole_job=False),
    signal.SIGHUP: Hangup(),
}


class Terminal:
    """One for the life of the supervisor, used as a context manager on its main thread."""

    def __init__(self) -> None:
        for stream in (STDIN, STDOUT, STDERR):
            _fill_if_closed(stream)
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
        """What the user wants while no child runs: between two attempts. Ctrl-Z stops the supervisor right here."""
        deadline = time.monotonic() + timeout
        while True:
            message = self.inbox.take(deadline - time.monotonic())
            if message is None:
                return None
            notice = event_of(message) if isinstance(message, signal.Signals) else message
            if isinstance(notice, Suspend):
                stopped_at = time.monotonic()
                self.inbox.stop_here(whole_job=notice.whole_job)
                return Continued(time.monotonic() - stopped_at)
            if notice is not None and not isinstance(notice, Forwarded):
                return notice

    def in_foreground(self) -> bool:
        """Whether the keyboard is ours to read. A terminal that is not our controlling one belongs to someone else."""
        try:
            return os.tcgetpgrp(STDIN) == os.getpgrp()
        except OSError:
            return False

    def gone(self) -> bool:
        """SIGHUP may also come from somebody who means something else by it."""
        try:
            termios.tcgetattr(STDIN)
        except termios.error:
            return True
        return False

    @property
    def claimed(self) -> bool:
        return self._before_claim is not None

    def claim(self) -> bool:
        """Takes the keyboard for the child, if it is ours to give. To be called again after everything was stopped."""
        if not self.in_foreground():
            self._before_claim = None
            return False
        try:
            before = self._before_claim or termios.tcgetattr(STDIN)
            termios.tcsetattr(STDIN, termios.TCSANOW, _every_byte_as_typed(before))
        except termios.error:  # hung up since
            return False
        self._before_claim = before
        return True

    def release(self) -> None:
        """Gives the user's terminal back as it was. Not from the background: it is the shell's then."""
        if self._before_claim is not None and self.in_foreground():
            with contextlib.suppress(termios.error):
                termios.tcsetattr(STDIN, termios.TCSANOW, self._before_claim)
        self._before_claim = None

    def modes(self, stream: int) -> list[Any] | None:
        """How the terminal behind the stream is set, unless that is the doing of a shell that has it just now."""
        if self._before_claim is not None and stream == STDIN:
            return self._before_claim
        try:
            return termios.tcgetattr(stream) if os.tcgetpgrp(stream) == os.getpgrp() else None
        except (OSError, termios.error):
            return None

    def window(self) -> bytes | None:
        """The window's size as the kernel packs it."""
        for stream in (STDIN, STDOUT, STDERR):
            with contextlib.suppress(OSError):
                return fcntl.ioctl(stream, termios.TIOCGWINSZ, bytes(struct.calcsize("HHHH")))
        return None


class Keys(NamedTuple):
    meanings: dict[int, str]
    """Byte -> "interrupt", "suspend", "pause" or "resume"."""
    any_resumes: bool
    """Whether any key ends a pause."""
    end_of_file: bytes
    """What ends the input of a child that reads lines; empty where it reads bytes."""


class ChildTerminal:
    """A pseudo-terminal for one stream of the child.

    We keep the child's end open too: then the kernel reports no end of output while anything is still to be read, and a
    child that closes its streams can open /dev/tty again. Output passes unprocessed, since the user's terminal will process it.
    """

    def __init__(self, modes: list[Any] | None, window: bytes | None) -> None:
        self.our_end, self.child_end = os.openpty()
        modes = modes or termios.tcgetattr(self.child_end)
        modes = [*modes[:OFLAG], modes[OFLAG] & ~termios.OPOST, *modes[OFLAG + 1 :]]
        termios.tcsetattr(self.child_end, termios.TCSANOW, modes)
        self._last_modes = modes
        self._disabled = os.fpathconf(self.child_end, "PC_VDISABLE") & 0xFF
        if window is not None:
            self.resize(window)

    def resize(self, window: bytes) -> None:
        with contextlib.suppress(OSError):
            fcntl.ioctl(self.our_end, termios.TIOCSWINSZ, window)

    def keys(self) -> Keys:
        """What single bytes mean to the child's terminal as it is set now. A full-screen program takes all as data."""
        modes = self._modes()
        named = {}
        if modes[LFLAG] & termios.ISIG:
            named.update({termios.VINTR: "interrupt", termios.VSUSP: "suspend"})
        if modes[IFLAG] & termios.IXON:
            named.update({termios.VSTOP: "pause", termios.VSTART: "resume"})
        bound = {modes[CC][index][0]: meaning for index, meaning in named.items()}
        bound.pop(self._disabled, None)
        ends = modes[CC][termios.VEOF] if modes[LFLAG] & termios.ICANON else b""
        return Keys(bound, any_resumes=bool(modes[IFLAG] & termios.IXANY), end_of_file=ends)

    def _modes(self) -> list[Any]:
        with contextlib.suppress(termios.error):
            self._last_modes = termios.tcgetattr(self.child_end)
        return self._last_modes

    def close(self) -> None:
        os.close(self.our_end)
        os.close(self.child_end)


def event_of(number: signal.Signals) -> ProcessEvent | None:
    """What a signal to the supervisor means, None for those that only wake it."""
    if number in FORWARDED:
        return Forwarded(number.name)
    return _MEANINGS.get(number)


def _every_byte_as_typed(modes: list[Any]) -> list[Any]:
    translations = (
        termios.BRKINT | termios.ICRNL | termios.INLCR | termios.IGNCR | termios.ISTRIP | termios.IXON | termios.PARMRK
    )
    typed = [*modes[:CC], list(modes[CC])]
    typed[IFLAG] &= ~translations
    typed[LFLAG] &= ~(termios.ECHO | termios.ECHONL | termios.ICANON | termios.ISIG | termios.IEXTEN)
    typed[CC][termios.VMIN] = 1
    typed[CC][termios.VTIME] = 0
    return typed


def _fill_if_closed(stream: int) -> None:
    """A stream that we were started without: else the next file that is opened would take its number."""
    try:
        os.fstat(stream)
    except OSError:
        null = os.open(os.devnull, os.O_RDWR)
        if null != stream:
            os.dup2(null, stream)
            os.close(null)

"""Signals to the supervisor, kept until its loop asks for them.

A handler does nothing: Python writes the signal's number into a pipe, and the loop sleeps on that pipe. Threads that
have something to tell the loop post it here too, so that there is one place to wait at.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import threading
from collections import deque
from typing import TYPE_CHECKING, Any, Union

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from types import FrameType

    from holdfast.process.process_events import ProcessEvent

FORWARDED = frozenset(
    getattr(signal, name)
    for name in ("SIGUSR1", "SIGUSR2", "SIGQUIT", "SIGXCPU", "SIGPWR", "SIGINFO")
    if hasattr(signal, name)
)
"""The child's business. SIGALRM and its kin are not here: they are timers of the process that they reach."""

CAUGHT = FORWARDED | {
    signal.SIGINT,
    signal.SIGTERM,
    signal.SIGHUP,
    signal.SIGTSTP,
    signal.SIGCONT,
    signal.SIGCHLD,
    signal.SIGWINCH,
}

IGNORED = frozenset({signal.SIGTTIN, signal.SIGTTOU})
"""As a background job we look before we touch the terminal; should we be too late, an error is better than standing still."""

Message = Union[signal.Signals, "ProcessEvent"]


class SignalInbox:
    """The signals that arrived and the notices that threads posted, in order. To be opened on the main thread."""

    def __init__(self) -> None:
        self._read_end, self._write_end = os.pipe()
        for end in (self._read_end, self._write_end):
            os.set_blocking(end, False)
        self._before: dict[signal.Signals, Any] = {}
        self._mask_before_fork: set[int] = set()
        self._wakeup_before = -1
        self._posted: deque[ProcessEvent] = deque()
        self._messages: deque[Message] = deque()

    def open(self) -> None:
        self._wakeup_before = signal.set_wakeup_fd(self._write_end, warn_on_full_buffer=False)
        for number in sorted(CAUGHT | IGNORED):
            before = signal.getsignal(number)
            # What we were told to ignore (nohup, a script's background job) stays ignored, by us and by the child.
            if before is None or (before == signal.SIG_IGN and number != signal.SIGCHLD):
                continue
            self._before[number] = before
            signal.signal(number, signal.SIG_IGN if number in IGNORED else _noted)

    def close(self) -> None:
        for number, before in self._before.items():
            signal.signal(number, before)
        self._before.clear()
        signal.set_wakeup_fd(self._wakeup_before)
        os.close(self._read_end)
        os.close(self._write_end)

    def post(self, notice: ProcessEvent) -> None:
        """Tells the loop something. From any thread."""
        self._posted.append(notice)
        self._wake()

    def take(self, timeout: float) -> Message | None:
        """The next message, waiting for one at most so long."""
        if not self.waiting():
            self.listen(timeout)
        return self._messages.popleft() if self._messages else None

    def listen(self, timeout: float) -> None:
        """Returns as soon as something new arrives, at the latest after so long."""
        select.select([self._read_end], [], [], max(0.0, timeout))
        self._collect()

    def waiting(self) -> list[Message]:
        """What has arrived and was not taken."""
        self._collect()
        return list(self._messages)

    def stop_here(self, *, whole_job: bool) -> None:
        """Stops this process as SIGTSTP does by default, and returns when it is continued.

        Where nobody could continue us (an orphaned process group) the kernel discards the signal, and this returns at once.
        """
        before = self._before.get(signal.SIGTSTP)
        if before is None:
            return
        signal.signal(signal.SIGTSTP, before)
        try:
            if whole_job:
                os.killpg(0, signal.SIGTSTP)
            else:
                os.kill(os.getpid(), signal.SIGTSTP)
        finally:
            signal.signal(signal.SIGTSTP, _noted)

    def leave_to_child(self) -> None:
        """Between fork and exec: the child must not write into our pipe, nor inherit what only we ignore."""
        signal.set_wakeup_fd(-1)
        for number in IGNORED:
            if number in self._before:
                signal.signal(number, self._before[number])
        signal.pthread_sigmask(signal.SIG_SETMASK, self._mask_before_fork)

    @contextlib.contextmanager
    def held_back_for_fork(self) -> Iterator[None]:
        """A signal to our process group between fork and exec would otherwise be told by parent and child both."""
        self._mask_before_fork = signal.pthread_sigmask(signal.SIG_BLOCK, CAUGHT)
        try:
            yield
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, self._mask_before_fork)

    def _collect(self) -> None:
        with contextlib.suppress(BlockingIOError):
            for number in os.read(self._read_end, 4096):
                if number in CAUGHT:
                    self._messages.append(signal.Signals(number))
        while self._posted:
            self._messages.append(self._posted.popleft())

    def _wake(self) -> None:
        with contextlib.suppress(BlockingIOError):
            os.write(self._write_end, b"\0")


def start_thread(name: str, target: Callable[[], None]) -> threading.Thread:
    """A thread that leaves all signals to the main thread, where stopping ourselves must take effect at once."""
    thread = threading.Thread(target=target, name=name, daemon=True)
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
    try:
        thread.start()
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
    return thread


def _noted(number: int, frame: FrameType | None) -> None:
    """The number is in the pipe by now."""

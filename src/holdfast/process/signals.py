"""Signals to the supervisor, queued until its loop reads them.

The signal handlers do nothing: Python writes the signal number into a pipe (`signal.set_wakeup_fd`), and the loop waits
on that pipe. Threads post their events for the loop here too, so the loop has a single place to wait.
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
"""Signals that are passed on to the child. SIGALRM and similar are not: they are timers of the receiving process."""

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
"""Holdfast checks that it is in the foreground before it uses the terminal. If the check comes too late, an error is
better than being stopped."""

Message = Union[signal.Signals, "ProcessEvent"]


class SignalInbox:
    """The signals that arrived and the events that threads posted, in order. Open it on the main thread."""

    def __init__(self) -> None:
        self._read_end, self._write_end = os.pipe()
        for end in (self._read_end, self._write_end):
            os.set_blocking(end, False)
        self._previous: dict[signal.Signals, Any] = {}
        self._mask_before_fork: set[int] = set()
        self._previous_wakeup_fd = -1
        self._posted: deque[ProcessEvent] = deque()
        self._messages: deque[Message] = deque()

    def open(self) -> None:
        self._previous_wakeup_fd = signal.set_wakeup_fd(self._write_end, warn_on_full_buffer=False)
        for number in sorted(CAUGHT | IGNORED):
            previous = signal.getsignal(number)
            # Signals ignored at startup (nohup, a background job of a script) stay ignored, also in the child.
            if previous is None or (previous == signal.SIG_IGN and number != signal.SIGCHLD):
                continue
            self._previous[number] = previous
            signal.signal(number, signal.SIG_IGN if number in IGNORED else _do_nothing)

    def close(self) -> None:
        for number, previous in self._previous.items():
            signal.signal(number, previous)
        self._previous.clear()
        signal.set_wakeup_fd(self._previous_wakeup_fd)
        os.close(self._read_end)
        os.close(self._write_end)

    def post(self, event: ProcessEvent) -> None:
        """Queue an event for the loop. May be called from any thread."""
        self._posted.append(event)
        self._wake()

    def take(self, timeout: float) -> Message | None:
        """Return the next message; wait for it up to `timeout` seconds."""
        if not self.pending():
            self.listen(timeout)
        return self._messages.popleft() if self._messages else None

    def listen(self, timeout: float) -> None:
        """Wait until a message arrives, up to `timeout` seconds."""
        select.select([self._read_end], [], [], max(0.0, timeout))
        self._collect()

    def pending(self) -> list[Message]:
        """Return the messages that have arrived and were not taken."""
        self._collect()
        return list(self._messages)

    def stop_self(self, *, whole_job: bool) -> None:
        """Stop this process as SIGTSTP does by default, and return when it is continued.

        In an orphaned process group nothing could continue it: the kernel discards the signal, and this returns at
        once.
        """
        previous = self._previous.get(signal.SIGTSTP)
        if previous is None:
            return
        signal.signal(signal.SIGTSTP, previous)
        try:
            if whole_job:
                os.killpg(0, signal.SIGTSTP)
            else:
                os.kill(os.getpid(), signal.SIGTSTP)
        finally:
            signal.signal(signal.SIGTSTP, _do_nothing)

    def reset_in_child(self) -> None:
        """Restore signal handling between fork and exec.

        The child must not write into the supervisor's pipe, nor inherit signals that only the supervisor ignores.
        """
        signal.set_wakeup_fd(-1)
        for number in IGNORED:
            if number in self._previous:
                signal.signal(number, self._previous[number])
        signal.pthread_sigmask(signal.SIG_SETMASK, self._mask_before_fork)

    @contextlib.contextmanager
    def block_during_fork(self) -> Iterator[None]:
        """Block signals around a fork, or parent and child would both report a signal sent to the process group."""
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
    """Start a thread that leaves all signals to the main thread, where SIGTSTP to this process must take effect at once."""
    thread = threading.Thread(target=target, name=name, daemon=True)
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
    try:
        thread.start()
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
    return thread


def _do_nothing(number: int, frame: FrameType | None) -> None:
    """Do nothing: Python has already written the signal number to the pipe."""

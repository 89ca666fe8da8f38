"""Stack dumps of every thread of the training, requested by a signal for which the probe installed a handler."""

from __future__ import annotations

import contextlib
import signal
from pathlib import Path
from typing import TYPE_CHECKING

from holdfast.process.process_identity import send_signal
from holdfast.storage.safe_files import open_regular

if TYPE_CHECKING:
    from collections.abc import Callable

    import psutil

STACK_SIGNALS = frozenset({signal.SIGURG, signal.SIGUSR2})
"""The signals that the probe may handle. The number is read from a file, so no other signal is ever sent."""
STACK_TIMEOUT_S = 5.0


class StackReader:
    """Requests stack dumps from processes and collects what they write."""

    def __init__(self, file_of: Callable[[int], Path]) -> None:
        self._file_of = file_of
        self._offsets: dict[int, int] = {}
        self._deadline: float | None = None
        self.pids: list[int] = []

    def request(self, processes: list[tuple[psutil.Process, int]], now: float) -> bool:
        """Signal processes of the attempt, each given with the signal that it reports to handle.

        Return whether any signal was sent.
        """
        self.pids = []
        for process, number in processes[:8]:
            self._offsets[process.pid] = self._size(process.pid)
            if number in STACK_SIGNALS and _has_handler(process.pid, number) and send_signal(process, number):
                self.pids.append(process.pid)
        self._deadline = now + STACK_TIMEOUT_S if self.pids else None
        return bool(self.pids)

    def collect(self, now: float) -> str | None:
        """Return all stacks once every process has written its own or the timeout has passed; "" if none did.

        Return None while it still waits, or if nothing was requested.
        """
        if self._deadline is None:
            return None
        texts = [self._read(pid) for pid in self.pids]
        if now < self._deadline and not all(text.endswith("\n") for text in texts):
            return None
        self._deadline = None
        return "\n".join(text for text in texts if text)[:64_000]

    def _size(self, pid: int) -> int:
        with contextlib.suppress(OSError):
            return self._file_of(pid).stat().st_size
        return 0

    def _read(self, pid: int) -> str:
        with contextlib.suppress(OSError), open_regular(self._file_of(pid), follow_links=False) as file:
            file.seek(self._offsets[pid])
            return file.read(256_000).decode(errors="replace")
        return ""


def _has_handler(pid: int, number: int) -> bool:
    """Return whether the process handles the signal: without a handler SIGUSR2 would kill it.

    If that cannot be read, trust what the probe reported.
    """
    try:
        status = Path(f"/proc/{pid}/status").read_text(errors="replace")
    except OSError:
        return True
    caught = next((line.split()[1] for line in status.splitlines() if line.startswith("SigCgt:")), "")
    try:
        return not caught or bool(int(caught, 16) >> (number - 1) & 1)
    except ValueError:
        return True

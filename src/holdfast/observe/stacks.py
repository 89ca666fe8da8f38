"""What every thread of the training is doing, asked for by a signal that the probe has armed."""

from __future__ import annotations

import contextlib
import os
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

STACK_PATIENCE_S = 5.0


class StackReader:
    """Asks processes for their stacks and collects what they write."""

    def __init__(self, file_of: Callable[[int], Path]) -> None:
        self._file_of = file_of
        self._offsets: dict[int, int] = {}
        self._deadline: float | None = None
        self.pids: list[int] = []

    def ask(self, processes: list[tuple[int, int]], now: float) -> bool:
        """True when somebody could be asked."""
        self.pids = []
        for pid, signal_number in processes[:8]:
            self._offsets[pid] = self._size(pid)
            with contextlib.suppress(OSError):
                os.kill(pid, signal_number)
                self.pids.append(pid)
        self._deadline = now + STACK_PATIENCE_S if self.pids else None
        return bool(self.pids)

    def answer(self, now: float) -> str | None:
        """All stacks, once every process has written its own, or the wait is over; "" when nobody did."""
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
        with contextlib.suppress(OSError), self._file_of(pid).open("rb") as file:
            file.seek(self._offsets[pid])
            return file.read(256_000).decode(errors="replace")
        return ""

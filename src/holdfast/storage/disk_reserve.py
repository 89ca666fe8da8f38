"""Disk space reserved at the start of a run and freed at its end, so that its last output fits on a full disk."""

from __future__ import annotations

import contextlib
import os
from typing import TYPE_CHECKING

from holdfast.storage.safe_files import open_handle

if TYPE_CHECKING:
    from pathlib import Path

BYTES = 1 << 20
"""Enough for pending events, the summary and the report."""


class Reserve:
    def __init__(self, path: Path) -> None:
        self._path = path
        self._handle: int | None = None
        """Handle of the created file. At the end, another file may have this name."""
        try:
            with contextlib.suppress(FileNotFoundError):
                path.unlink()  # left by a killed supervisor; this removes the name and overwrites nothing
            flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
            self._handle = open_handle(path, flags)
            remaining = os.urandom(BYTES)  # uniform data could be compressed, or not written at all
            while remaining:
                remaining = remaining[os.write(self._handle, remaining) :]
        except OSError:
            self.release()

    def release(self) -> None:
        handle, self._handle = self._handle, None
        if handle is None:
            return
        with contextlib.suppress(OSError):
            os.ftruncate(handle, 0)
            if os.path.samestat(os.fstat(handle), self._path.lstat()):
                self._path.unlink()
        os.close(handle)

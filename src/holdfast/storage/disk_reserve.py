"""Room on the disk that a run takes at its beginning and gives back at its end: where the disk is full by then, its last words fit."""

from __future__ import annotations

import contextlib
import os
from typing import TYPE_CHECKING

from holdfast.storage.safe_files import open_handle

if TYPE_CHECKING:
    from pathlib import Path

BYTES = 1 << 20
"""For what waits to be written, the summary and the report."""


class Reserve:
    def __init__(self, path: Path) -> None:
        self._path = path
        self._handle: int | None = None
        """Of the file that was made: what lies under this name at the end may be another's."""
        try:
            with contextlib.suppress(FileNotFoundError):
                path.unlink()  # of a supervisor that was killed; a name is removed, and nothing written over
            flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
            self._handle = open_handle(path, flags)
            left = os.urandom(BYTES)  # what is all the same might be packed, or not written at all
            while left:
                left = left[os.write(self._handle, left) :]
        except OSError:
            self.give_back()

    def give_back(self) -> None:
        handle, self._handle = self._handle, None
        if handle is None:
            return
        with contextlib.suppress(OSError):
            os.ftruncate(handle, 0)
            if os.path.samestat(os.fstat(handle), self._path.lstat()):
                self._path.unlink()
        os.close(handle)

"""Room on the disk that a run takes at its beginning and gives back at its end: where the disk is full by then, its last words fit."""

from __future__ import annotations

import contextlib
import os
from typing import TYPE_CHECKING

from holdfast.record.safe_files import open_handle

if TYPE_CHECKING:
    from pathlib import Path

BYTES = 1 << 20
"""For what waits to be written, the summary and the report."""


class Reserve:
    def __init__(self, path: Path) -> None:
        self._path = path
        try:
            flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
            with os.fdopen(open_handle(path, flags), "wb") as file:
                file.write(os.urandom(BYTES))  # what is all the same might be packed, or not written at all
        except OSError:
            self.give_back()

    def give_back(self) -> None:
        with contextlib.suppress(OSError):
            self._path.unlink()

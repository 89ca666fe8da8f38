"""Room on the disk that a run takes at its beginning and gives back at its end: where the disk is full by then, its last words fit."""

from __future__ import annotations

import contextlib
import os
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

BYTES = 1 << 20
"""For what waits to be written, the summary and the report."""


class Reserve:
    def __init__(self, path: Path) -> None:
        self._path = path
        try:
            path.write_bytes(os.urandom(BYTES))  # what is all the same might be packed, or not written at all
        except OSError:
            self.give_back()

    def give_back(self) -> None:
        with contextlib.suppress(OSError):
            self._path.unlink()

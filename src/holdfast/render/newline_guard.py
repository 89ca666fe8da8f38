"""Start Holdfast's lines on a new line: a progress bar of the training leaves its line open.

The training's last output is read from its recorded logs.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, NamedTuple, TextIO

from holdfast.storage.folder import stage_folders
from holdfast.storage.safe_files import open_regular

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from holdfast.storage.folder import RunFolder

STDOUT = 1


class _Log(NamedTuple):
    changed: int
    size: int
    path: Path


class NewlineGuard:
    def __init__(self, run: RunFolder) -> None:
        self._run = run
        self._handled: _Log | None = None
        """The training's newest output at the last call."""

    def needed_newline(self, stream: TextIO) -> str:
        """Return what to write first so that the next text starts on a new line: a newline or nothing."""
        newest = max(self._logs(stream), default=None)
        if newest is None or newest == self._handled:
            return ""
        self._handled = newest
        return "" if _ends_its_line(newest) else "\n"

    def _logs(self, stream: TextIO) -> Iterator[_Log]:
        names = "std*.log*" if _shows_both(stream) else "stderr.log*"
        for run in [self._run, *stage_folders(self._run)]:
            for path in run.path.glob(f"attempts/*/{names}"):
                try:
                    found = path.stat()
                except OSError:
                    continue  # part of a long log that was just renamed
                if found.st_size:
                    yield _Log(found.st_mtime_ns, found.st_size, path)


def _shows_both(stream: TextIO) -> bool:
    """Return True if the training's stdout goes to the same place as this stream."""
    try:
        return os.path.samestat(os.fstat(stream.fileno()), os.fstat(STDOUT))
    except (OSError, ValueError):  # not a file, or closed
        return False


def _ends_its_line(log: _Log) -> bool:
    try:
        with open_regular(log.path, follow_links=False) as file:
            file.seek(-1, os.SEEK_END)
            return file.read(1) == b"\n"
    except OSError:
        return False  # an extra empty line does no harm

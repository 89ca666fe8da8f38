"""Whether a line of ours would begin in the middle of one of the training's: a progress bar does not end its line.

What the training printed last is in its recorded output, wherever that is shown.
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
        self._told: _Log | None = None
        """What was printed last when a line of ours followed it."""

    def before_a_line(self, stream: TextIO) -> str:
        """What has to be written first, so that a line begins where a line does."""
        newest = max(self._logs(stream), default=None)
        if newest is None or newest == self._told:
            return ""
        self._told = newest
        return "" if _ends_its_line(newest) else "\n"

    def _logs(self, stream: TextIO) -> Iterator[_Log]:
        names = "std*.log*" if _shows_both(stream) else "stderr.log*"
        for run in [self._run, *stage_folders(self._run)]:
            for path in run.path.glob(f"attempts/*/{names}"):
                try:
                    found = path.stat()
                except OSError:
                    continue  # a part of a long log that was just moved
                if found.st_size:
                    yield _Log(found.st_mtime_ns, found.st_size, path)


def _shows_both(stream: TextIO) -> bool:
    """Whether the training's stdout is shown where this stream is."""
    try:
        return os.path.samestat(os.fstat(stream.fileno()), os.fstat(STDOUT))
    except (OSError, ValueError):  # no file at all, or closed
        return False


def _ends_its_line(log: _Log) -> bool:
    try:
        with open_regular(log.path, follow_links=False) as file:
            file.seek(-1, os.SEEK_END)
            return file.read(1) == b"\n"
    except OSError:
        return False  # an empty line too many does no harm

"""Removal of snapshots of a corrupt state: a training resumes from the newest snapshot that it finds on disk.

The journal does not list all snapshots: a process that is killed right after writing one never reports it. So the step is read from
the files themselves. They are not trusted: little is read of each, and a file that cannot be read is not resumed from.
"""

from __future__ import annotations

import contextlib
import re
import struct
from typing import TYPE_CHECKING

import msgspec

from holdfast.storage.safe_files import untrusted_owner

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

TRACE = "trace"
"""The losses of the newest batches; repeated batches are compared with them."""
LATER_TRAININGS = ("training-*", "guard-*")
"""Folders of all trainings of a process but the first, inside the folder of the first."""
_PART = re.compile(r"(\d{12})\.rank-\d+-of-(\d+)\.snapshot")
_SNAPSHOT_FILE = re.compile(r"(\d{12})\.(?:rank-\d+-)?of-(\d+)\.(?:commit|snapshot|snapshot\.hash)")
_MAGIC = re.compile(rb"holdfast snapshot \d+\n")
_LENGTH = struct.Struct("<Q")
_MAX_LINE = 64
_MAX_HEADER = 1 << 26


class _Header(msgspec.Struct):
    """The part of a header that is needed. Other keys are skipped and take no memory."""

    step: int


def discard_corrupt(folder: Path, known: Mapping[Path, int], since: int) -> None:
    """Remove all snapshots from step `since` on, and the loss trace of the discarded steps. `known` has the steps in the journal."""
    places = {folder, *(path.parent for path in known)}
    nested = {found for place in places for pattern in LATER_TRAININGS for found in place.glob(pattern)}
    for place in places | nested:
        with contextlib.suppress(OSError):
            _discard_in(place, known, since)


def _discard_in(folder: Path, known: Mapping[Path, int], since: int) -> None:
    files = [path for path in folder.iterdir() if _SNAPSHOT_FILE.fullmatch(path.name)]
    corrupt = {_snapshot_key(path) for path in files if _PART.fullmatch(path.name) and _read_step(path, known) >= since}
    for path in [*(path for path in files if _snapshot_key(path) in corrupt), folder / TRACE]:
        with contextlib.suppress(OSError):
            if untrusted_owner(path) is None:  # the training ignores files of another user, so they stay
                path.unlink()


def _snapshot_key(path: Path) -> tuple[str, ...]:
    """Return which snapshot a file belongs to: its position and the number of ranks."""
    match = _SNAPSHOT_FILE.fullmatch(path.name)
    return match.groups() if match is not None else ()


def _read_step(path: Path, known: Mapping[Path, int]) -> float:
    """Return the step in the file: the file may have been rewritten since its step was recorded in the journal."""
    try:
        return _read_header(path).step
    except (OSError, ValueError, RecursionError, struct.error, msgspec.DecodeError):
        return known.get(path, float("inf"))


def _read_header(path: Path) -> _Header:
    if not path.is_file():
        raise ValueError("not a file")
    with path.open("rb") as file:
        if _MAGIC.fullmatch(file.readline(_MAX_LINE)) is None:
            raise ValueError("not a snapshot")
        (length,) = _LENGTH.unpack(file.read(_LENGTH.size))
        if length > _MAX_HEADER:
            raise ValueError("its header is too long")
        return msgspec.json.decode(file.read(length), type=_Header)

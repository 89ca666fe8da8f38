"""Snapshots of a spoiled state are removed: a training goes on from the newest that it finds on disk.

The journal does not know all of them. A process that is killed right after it has put one in its place never tells of it, so it is
asked of the files themselves, which anything may have been done to: little is read of each, and what cannot be read is not gone on from.
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
"""The losses of the newest batches, which what is made again is compared with."""
LATER_TRAININGS = ("training-*", "guard-*")
"""Each but the first training of a process has a folder of its own, in that of the first."""
_PART = re.compile(r"(\d{12})\.rank-\d+-of-(\d+)\.snapshot")
_SNAPSHOT_FILE = re.compile(r"(\d{12})\.(?:rank-\d+-)?of-(\d+)\.(?:commit|snapshot|snapshot\.hash)")
_MAGIC = re.compile(rb"holdfast snapshot \d+\n")
_LENGTH = struct.Struct("<Q")
_MAX_LINE = 64
_MAX_HEADER = 1 << 26


class _Header(msgspec.Struct):
    """All else in it is passed over and takes no memory."""

    step: int


def discard_corrupt(folder: Path, known: Mapping[Path, int], since: int) -> None:
    """All of that step and later ones, with the losses of what is given up. `known` has the steps that the journal knows of."""
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
            if untrusted_owner(path) is None:  # what another user put there is passed over by who goes on, and stays
                path.unlink()


def _snapshot_key(path: Path) -> tuple[str, ...]:
    """Which snapshot a file belongs to: its position, and among how many ranks."""
    match = _SNAPSHOT_FILE.fullmatch(path.name)
    return match.groups() if match is not None else ()


def _read_step(path: Path, known: Mapping[Path, int]) -> float:
    """The file's own word counts: it may have been written again since the journal heard of it."""
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

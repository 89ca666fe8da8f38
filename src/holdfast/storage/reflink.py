"""A copy of a file that shares its blocks until one of the two is written to, where the file system can do that."""

from __future__ import annotations

import ctypes
import os
import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

_FICLONE = 0x40049409


def clone(source: Path, target: Path) -> bool:
    """True when `target`, which must not exist, now is a clone. False leaves nothing behind."""
    try:
        done = _clonefile(source, target) if sys.platform == "darwin" else _reflink(source, target)
    except (OSError, AttributeError):
        done = False
    if not done:
        target.unlink(missing_ok=True)
    return done


def _clonefile(source: Path, target: Path) -> bool:
    library = ctypes.CDLL(None, use_errno=True)
    return int(library.clonefile(os.fsencode(source), os.fsencode(target), ctypes.c_uint32(0))) == 0


def _reflink(source: Path, target: Path) -> bool:
    import fcntl  # noqa: PLC0415 - not on every platform that may import this

    with source.open("rb") as old, target.open("xb") as new:
        fcntl.ioctl(new.fileno(), _FICLONE, old.fileno())
    return True

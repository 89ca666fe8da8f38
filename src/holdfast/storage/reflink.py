"""Copy-on-write clones of files, if the file system supports them."""

from __future__ import annotations

import ctypes
import os
import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

_FICLONE = 0x40049409


def clone(source: Path, target: Path) -> bool:
    """Clone `source` to `target`, which must not exist. If that fails, leave nothing behind and return False."""
    try:
        is_cloned = _clonefile(source, target) if sys.platform == "darwin" else _reflink(source, target)
    except (OSError, AttributeError):
        is_cloned = False
    if not is_cloned:
        target.unlink(missing_ok=True)
    return is_cloned


def _clonefile(source: Path, target: Path) -> bool:
    library = ctypes.CDLL(None, use_errno=True)
    return int(library.clonefile(os.fsencode(source), os.fsencode(target), ctypes.c_uint32(0))) == 0


def _reflink(source: Path, target: Path) -> bool:
    import fcntl  # noqa: PLC0415 - not available on every platform that may import this

    with source.open("rb") as old, target.open("xb") as new:
        fcntl.ioctl(new.fileno(), _FICLONE, old.fileno())
    return True

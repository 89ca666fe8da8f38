"""Cleans up heartbeat tables that killed supervisors left in memory. Each is moved to the file of its run, as at the
end of a run.

A table that may still be in use is not touched: the supervisor and all processes in the table must be gone, in the PID
namespace of their PIDs, and the run must not be locked. Only regular files of this user with a matching name are
considered.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
import stat
import time
from pathlib import Path
from typing import TYPE_CHECKING

from holdfast.probe.holdfast_probe import heartbeat
from holdfast.storage.safe_files import open_handle, read_bytes

if TYPE_CHECKING:
    from collections.abc import Iterator

LOST_S = 3600.0
"""How long to keep a table whose run is not at its path any more. The run may have been moved and can still be
resumed."""
ELSEWHERE_S = 86_400.0
"""How long to keep a table of another container. After that, it is removed if its run is here and not locked."""
MAX_BYTES = heartbeat.SIZE + 8192
_NAME = re.compile(r"holdfast-([1-9][0-9]{0,9})-[0-9a-f]{16}", re.ASCII)


def settle_stale(pid_space: str, folder: Path = Path(heartbeat.MEMORY)) -> None:
    """Clean up stale tables. `pid_space` is the current boot and PID namespace."""
    with contextlib.suppress(OSError):
        for path, age in _find_stale(folder):
            with contextlib.suppress(OSError, ValueError):
                _settle(path, age, pid_space)


def _find_stale(folder: Path) -> Iterator[tuple[Path, float]]:
    """Yield the tables of this user whose supervisor is not running here, with their age."""
    for entry in os.scandir(folder):
        match = _NAME.fullmatch(entry.name)
        if match is None or heartbeat.process_exists(int(match[1])):
            continue
        with contextlib.suppress(OSError):
            status = entry.stat(follow_symlinks=False)
            if stat.S_ISREG(status.st_mode) and status.st_uid == os.geteuid():
                yield Path(entry.path), time.time() - status.st_mtime


def _settle(path: Path, age: float, pid_space: str) -> None:
    data = read_bytes(path, MAX_BYTES, follow_links=False)
    table_space, _, run_path = data[heartbeat.SIZE :].partition(b"\0")
    if not run_path:  # its supervisor was killed while writing it
        if age > LOST_S:
            path.unlink()
        return
    is_here = bool(pid_space) and table_space.decode("ascii", "replace") == pid_space
    if is_here and any(heartbeat.process_exists(beat.pid) for beat in heartbeat.read(str(path)).values()):
        return
    if not is_here and age <= ELSEWHERE_S:
        return  # its processes are not visible from here
    run_file = os.fsdecode(run_path)
    if heartbeat.find_table(run_file) == str(path):
        with _keep_unlocked(Path(run_file).with_name("lock")):
            heartbeat.settle(run_file)
    elif is_here and age > LOST_S:
        path.unlink()


@contextlib.contextmanager
def _keep_unlocked(lock: Path) -> Iterator[None]:
    """Prevent supervisors from starting meanwhile. Raise OSError if one is running."""
    handle = open_handle(lock, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        fcntl.flock(handle, fcntl.LOCK_SH | fcntl.LOCK_NB)
        yield
    finally:
        os.close(handle)

"""Heartbeat tables that killed supervisors left in memory: each becomes its run's own file, as at a run's end, and leaves the memory.

Nothing is touched that may still be in use: the supervisor and every process in the table have to be gone, in the PID namespace that
their pids are of, and nobody may hold the run. Only regular files of this user with our kind of name are looked at.
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
"""A table whose run is not where it was may be of a run that was moved, which can still be resumed: so long it is kept."""
ELSEWHERE_S = 86_400.0
"""One of another container is kept so long, and then goes where its run lies here and nobody holds it."""
MAX_BYTES = heartbeat.SIZE + 8192
_NAME = re.compile(r"holdfast-([1-9][0-9]{0,9})-[0-9a-f]{16}", re.ASCII)


def settle_stale(pid_space: str, folder: Path = Path(heartbeat.MEMORY)) -> None:
    """`pid_space` is the boot and the PID namespace that we are in."""
    with contextlib.suppress(OSError):
        for path, age in _left_behind(folder):
            with contextlib.suppress(OSError, ValueError):
                _settle(path, age, pid_space)


def _left_behind(folder: Path) -> Iterator[tuple[Path, float]]:
    """Those of this user whose supervisor is no process here, with their age."""
    for entry in os.scandir(folder):
        named = _NAME.fullmatch(entry.name)
        if named is None or heartbeat.process_exists(int(named[1])):
            continue
        with contextlib.suppress(OSError):
            status = entry.stat(follow_symlinks=False)
            if stat.S_ISREG(status.st_mode) and status.st_uid == os.geteuid():
                yield Path(entry.path), time.time() - status.st_mtime


def _settle(path: Path, age: float, pid_space: str) -> None:
    data = read_bytes(path, MAX_BYTES, follow_links=False)
    of_space, _, of_run = data[heartbeat.SIZE :].partition(b"\0")
    if not of_run:  # its supervisor was killed while it wrote it
        if age > LOST_S:
            path.unlink()
        return
    is_here = bool(pid_space) and of_space.decode("ascii", "replace") == pid_space
    if is_here and any(heartbeat.process_exists(beat.pid) for beat in heartbeat.read(str(path)).values()):
        return
    if not is_here and age <= ELSEWHERE_S:
        return  # whether its processes live cannot be seen from here
    run_file = os.fsdecode(of_run)
    if heartbeat.find_table(run_file) == str(path):
        with _nobody_holds(Path(run_file).with_name("lock")):
            heartbeat.settle(run_file)
    elif is_here and age > LOST_S:
        path.unlink()


@contextlib.contextmanager
def _nobody_holds(lock: Path) -> Iterator[None]:
    """Raises OSError where a supervisor holds the run. Meanwhile none can begin."""
    handle = open_handle(lock, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        fcntl.flock(handle, fcntl.LOCK_SH | fcntl.LOCK_NB)
        yield
    finally:
        os.close(handle)

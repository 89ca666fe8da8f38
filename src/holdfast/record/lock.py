"""Two supervisors never share a run folder.

The lock is a flock on a file of the run: it goes with the process, however that ends. The probe in the child looks at the
same lock to learn whether its supervisor is still there.
"""

from __future__ import annotations

import fcntl
import os
import time
from typing import TYPE_CHECKING

from holdfast.words.errors import FolderNotWritable, RunIsLive

if TYPE_CHECKING:
    from types import TracebackType

    from typing_extensions import Self

    from holdfast.record.folder import RunFolder


class RunLock:
    def __init__(self, run: RunFolder) -> None:
        self._run = run
        self._handle: int | None = None

    def __enter__(self) -> Self:
        handle = os.open(self._run.lock, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            free = _taken(handle)
        except OSError as error:
            os.close(handle)
            raise FolderNotWritable(
                f"{self._run.path} cannot be locked: {error.strerror}.",
                next_step="choose a folder on a local disk with --dir DIR",
            ) from error
        if not free:
            holder = os.pread(handle, 32, 0).decode(errors="replace").split("\n")[0] or "unknown"
            os.close(handle)
            raise RunIsLive(
                f"The run {self._run.name} is already supervised by process {holder}.",
                next_step=f"watch it: holdfast status {self._run.reference}",
            )
        os.ftruncate(handle, 0)
        os.pwrite(handle, f"{os.getpid()}\n".encode(), 0)
        self._handle = handle
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._handle is not None:
            if error is None:
                # What the training left behind on purpose must not take our orderly end for a death.
                os.pwrite(self._handle, f"{os.getpid()}\nended\n".encode(), 0)
            os.close(self._handle)
            self._handle = None


def _taken(handle: int) -> bool:
    # Whoever only looks whether a run is live holds a shared lock for an instant: that is no second supervisor.
    for _ in range(20):
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            time.sleep(0.02)
        else:
            return True
    return False


def holder_of(run: RunFolder) -> int | None:
    """The process that supervises this run, where one does."""
    if not is_live(run):
        return None
    first = run.lock.read_text(errors="replace").partition("\n")[0]
    return int(first) if first.isdigit() else None


def is_live(run: RunFolder) -> bool:
    """Whether a supervisor holds this run right now."""
    try:
        handle = os.open(run.lock, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        fcntl.flock(handle, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(handle)
    return False

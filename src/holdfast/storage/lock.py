"""Two supervisors never share a run folder.

The lock is a flock on a file of the run: it goes with the process, however that ends. The probe in the child looks at the
same lock to learn whether its supervisor is still there.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import time
from typing import TYPE_CHECKING

from holdfast.schema.errors import FolderGone, FolderNotWritable, RunIsLive, UntrustedRun
from holdfast.schema.shell_text import shell_quoted
from holdfast.storage.folder import refuse_links
from holdfast.storage.owners import refuse_foreign
from holdfast.storage.safe_files import HasOtherNames, open_handle

if TYPE_CHECKING:
    from types import TracebackType

    from typing_extensions import Self

    from holdfast.storage.folder import RunFolder


FULL = (errno.ENOSPC, errno.EDQUOT)
MAX_PID_DIGITS = 10


class RunLock:
    def __init__(self, run: RunFolder) -> None:
        self._run = run
        self._handle: int | None = None
        self._folder: int | None = None
        """Held open, so that no other folder can get its number, by which `RunFolder.is_there` knows it."""

    def __enter__(self) -> Self:
        refuse_links(self._run)
        flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOFOLLOW
        try:
            handle = open_handle(self._run.lock, flags)
        except OSError as error:
            raise self._not_locked(error) from error
        try:
            free = _taken(handle)
            if free:
                os.ftruncate(handle, 0)
                os.pwrite(handle, f"{os.getpid()}\n".encode(), 0)
            holder = _pid_in(handle)
        except OSError as error:
            os.close(handle)
            raise self._not_locked(error) from error
        if free:
            self._refuse_exchanged(handle)
        else:
            os.close(handle)
            raise RunIsLive(
                f"The run {self._run.name} is already supervised by process {holder or 'unknown'}.",
                next_step=f"watch it: holdfast status {self._run.shell_reference}",
            )
        self._handle = handle
        with contextlib.suppress(OSError):
            self._folder = os.open(self._run.path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._handle is not None:
            if error is None:
                # What the training left behind on purpose must not take our orderly end for a death.
                with contextlib.suppress(OSError):  # a full disk: the run is over all the same
                    os.pwrite(self._handle, f"{os.getpid()}\nended\n".encode(), 0)
            os.close(self._handle)
            self._handle = None
        if self._folder is not None:
            os.close(self._folder)
            self._folder = None

    def _refuse_exchanged(self, handle: int) -> None:
        """What was looked at before the lock was taken must be what is locked now, and be ours as before."""
        try:
            refuse_foreign(self._run)
            if self._run.is_there() and os.path.samestat(os.fstat(handle), self._run.lock.lstat()):
                return
        except OSError:
            pass
        except UntrustedRun:
            os.close(handle)
            raise
        os.close(handle)
        raise FolderGone(
            f"The run folder {self._run.path} was removed or replaced while it was being opened.",
            next_step="look at what lies there now and who may write to the folders above it; then try again",
        )

    def _not_locked(self, error: OSError) -> FolderNotWritable:
        if isinstance(error, HasOtherNames):
            step = f"copy the run (cp -r {shell_quoted(self._run.path)} COPY), which makes it a file of its own, and resume the copy"
        elif error.errno in FULL:
            step = f"make room on the disk, then: holdfast resume {self._run.shell_reference}"
        else:
            step = "choose a folder on a local disk that you can write to with --dir DIR; or copy the run there"
        return FolderNotWritable(f"{self._run.path} cannot be locked: {error.strerror}.", next_step=step)


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
    """The process that supervises this run, where one does and says so."""
    handle = _opened(run)
    if handle is None:
        return None
    try:
        return _pid_in(handle) if _is_locked(handle) else None
    except OSError:
        return None
    finally:
        os.close(handle)


def is_live(run: RunFolder) -> bool:
    """Whether a supervisor holds this run right now."""
    handle = _opened(run)
    if handle is None:
        return False
    try:
        return _is_locked(handle)
    finally:
        os.close(handle)


def _opened(run: RunFolder) -> int | None:
    try:
        return open_handle(run.lock, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOFOLLOW)
    except OSError:
        return None


def _is_locked(handle: int) -> bool:
    try:
        fcntl.flock(handle, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:
        return False  # a file system without locks: no supervisor starts there, so none holds it
    return False


def _pid_in(handle: int) -> int | None:
    first = os.pread(handle, 32, 0).partition(b"\n")[0]
    return int(first) if first.isdigit() and len(first) <= MAX_PID_DIGITS else None

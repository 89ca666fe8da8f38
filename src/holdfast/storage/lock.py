"""The lock that prevents two supervisors from sharing a run folder.

It is an flock on a file of the run, released when the process exits for any reason. The probe in the training process
checks the same lock to find out whether its supervisor is still running.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import time
from typing import TYPE_CHECKING

from holdfast.schema.errors import FolderGone, FolderNotWritable, RunIsLive, UntrustedRun
from holdfast.schema.shell_text import shell_quote
from holdfast.storage.folder import refuse_links
from holdfast.storage.owners import refuse_foreign
from holdfast.storage.safe_files import HardLinkedFile, open_handle

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
        """Kept open so that no other folder can get its inode number, which `RunFolder.is_there` compares."""

    def __enter__(self) -> Self:
        refuse_links(self._run)
        flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOFOLLOW
        try:
            handle = open_handle(self._run.lock, flags)
        except OSError as error:
            raise self._make_lock_error(error) from error
        try:
            is_acquired = _acquire(handle)
            if is_acquired:
                os.ftruncate(handle, 0)
                os.pwrite(handle, f"{os.getpid()}\n".encode(), 0)
            owner = _read_pid(handle)
        except OSError as error:
            os.close(handle)
            raise self._make_lock_error(error) from error
        if is_acquired:
            self._refuse_replaced(handle)
        else:
            os.close(handle)
            raise RunIsLive(
                f"The run {self._run.name} is already supervised by process {owner or 'unknown'}.",
                next_step=f"see its state: holdfast status {self._run.shell_reference}",
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
                # Processes that the training left running on purpose must not mistake this normal exit for a crash.
                with contextlib.suppress(OSError):  # a full disk: the run is over anyway
                    os.pwrite(self._handle, f"{os.getpid()}\nended\n".encode(), 0)
            os.close(self._handle)
            self._handle = None
        if self._folder is not None:
            os.close(self._folder)
            self._folder = None

    def _refuse_replaced(self, handle: int) -> None:
        """Check that the locked file is the one that was checked before locking, and that it is still trusted."""
        try:
            refuse_foreign(self._run)
            if self._run.exists_unchanged() and os.path.samestat(os.fstat(handle), self._run.lock.lstat()):
                return
        except OSError:
            pass
        except UntrustedRun:
            os.close(handle)
            raise
        os.close(handle)
        raise FolderGone(
            f"The run folder {self._run.path} was removed or replaced while it was being opened.",
            next_step="check what is there now and who can write to its parent folders; then try again",
        )

    def _make_lock_error(self, error: OSError) -> FolderNotWritable:
        if isinstance(error, HardLinkedFile):
            step = f"copy the run (cp -r {shell_quote(self._run.path)} COPY), which removes the hard link, and resume the copy"
        elif error.errno in FULL:
            step = f"free some disk space, then: holdfast resume {self._run.shell_reference}"
        else:
            step = "use --dir DIR to choose a writable folder on a local disk, or copy the run there"
        return FolderNotWritable(f"{self._run.path} cannot be locked: {error.strerror}.", next_step=step)


def _acquire(handle: int) -> bool:
    # A check whether a run is live takes a shared lock for an instant. That is not a second supervisor.
    for _ in range(20):
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            time.sleep(0.02)
        else:
            return True
    return False


def read_holder(run: RunFolder) -> int | None:
    """Return the PID of the supervisor of this run; None if there is none or its PID is unknown."""
    handle = _open_lock(run)
    if handle is None:
        return None
    try:
        return _read_pid(handle) if _is_locked(handle) else None
    except OSError:
        return None
    finally:
        os.close(handle)


def is_live(run: RunFolder) -> bool:
    """Return True if a supervisor is running this run now."""
    handle = _open_lock(run)
    if handle is None:
        return False
    try:
        return _is_locked(handle)
    finally:
        os.close(handle)


def _open_lock(run: RunFolder) -> int | None:
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
        return False  # a file system without locks: no supervisor can start there
    return False


def _read_pid(handle: int) -> int | None:
    first = os.pread(handle, 32, 0).partition(b"\n")[0]
    return int(first) if first.isdigit() and len(first) <= MAX_PID_DIGITS else None

"""Ownership of a snapshot folder: one training at a time. Each further training of a program gets its own subfolder.

When a program is restarted, a training that had finished runs again and must not get the state of a later training.
"""

import os
import sys

from .fs import find_foreign_owner, make_folder, open_own

NAME = "claim.rank-%d"
GUARD_FOLDERS = ("guard", ".holdfast")
_finished: "dict[str, int]" = {}
"""How many trainings of this process finished, by folder."""
_active: "list[FolderLock]" = []


class InUse(RuntimeError):
    """Another training uses this folder for its snapshots."""


class ForeignFolder(RuntimeError):
    """The folder belongs to another user, who could change the state to resume from."""


class FolderLock(object):
    def __init__(self, folder, rank):
        self._base = folder
        self._rank = rank
        self._handle = None
        number = 0 if _is_interactive() else _finished.get(folder, 0) + sum(lock._base == folder for lock in _active)
        self.folder = os.path.join(folder, "guard-%d" % (number + 1)) if number else folder
        self._check_owner()

    def _check_owner(self):
        """Raise NotOurs if a folder belongs to another user. This includes the parent folders that guard creates
        itself.
        """
        folders, parent = [self.folder, self._base], os.path.dirname(self._base)
        while os.path.basename(parent) in GUARD_FOLDERS:
            folders.append(parent)
            parent = os.path.dirname(parent)
        for path in folders:
            try:
                owner = find_foreign_owner(path)
            except OSError:  # it does not exist yet
                continue
            if owner is not None:
                raise ForeignFolder(
                    "%s belongs to another user (uid %d), who could change the state that this training resumes from. "
                    "Use a snapshot folder of your own: guard(..., folder=...)." % (path, owner)
                )

    def acquire(self):
        """Take the lock. Raise InUse or NotOurs. The lock is released when the process exits, however it exits. Forks
        of the process, such as DataLoader workers, do not own it.
        """
        if any(lock.folder == self.folder for lock in _active):
            raise InUse(_format_in_use(self.folder, "in this process"))
        try:
            import fcntl

            make_folder(self.folder)
            self._check_owner()
            self._handle = open_own(self._path, os.O_RDWR | os.O_CREAT)
            try:
                fcntl.lockf(self._handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except (BlockingIOError, PermissionError):
                os.close(self._handle)
                self._handle = None
                raise InUse(_format_in_use(self.folder, "in another process")) from None
        except (OSError, ImportError):
            pass  # a full disk, or a file system without locks: the first snapshot reports it
        _active.append(self)

    def release(self, finished):
        if self in _active:
            _active.remove(self)
        if finished:
            _finished[self._base] = _finished.get(self._base, 0) + 1
        try:
            if self._handle is not None:
                os.unlink(self._path)
                os.close(self._handle)
                self._handle = None
            if finished and self.folder != self._base:
                os.rmdir(self.folder)
        except OSError:
            pass

    @property
    def _path(self):
        return os.path.join(self.folder, NAME % self._rank)


def _is_interactive():
    """Return whether this is a notebook or shell, in which a cell that runs again is the same training."""
    return hasattr(sys, "ps1") or "ipykernel" in sys.modules


def _format_in_use(folder, where):
    return (
        "Another training %s uses %s for its snapshots. Give each training its own folder: guard(..., folder=...)."
        % (
            where,
            folder,
        )
    )

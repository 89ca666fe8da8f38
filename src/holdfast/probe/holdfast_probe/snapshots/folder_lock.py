"""Ownership of a snapshot folder: one training at a time. Each further training of a program gets its own subfolder.

When a program is restarted, a training that had finished runs again and must not get the state of a later training.
"""

import os
import sys

from .fs import make_folder, open_own, owner_of

NAME = "claim.rank-%d"
FOLDERS_ABOVE = ("guard", ".holdfast")
_ended: "dict[str, int]" = {}
"""How many trainings of this process finished, by folder."""
_open: "list[FolderLock]" = []


class InUse(RuntimeError):
    """Another training uses this folder for its snapshots."""


class NotOurs(RuntimeError):
    """The folder belongs to another user, who could change the state to resume from."""


class FolderLock(object):
    def __init__(self, folder, rank):
        self._given = folder
        self._rank = rank
        self._handle = None
        number = 0 if _interactive() else _ended.get(folder, 0) + sum(claim._given == folder for claim in _open)
        self.folder = os.path.join(folder, "guard-%d" % (number + 1)) if number else folder
        self._refuse_foreign()

    def _refuse_foreign(self):
        """Raise NotOurs if a folder belongs to another user. This includes the parent folders that guard creates itself."""
        places, above = [self.folder, self._given], os.path.dirname(self._given)
        while os.path.basename(above) in FOLDERS_ABOVE:
            places.append(above)
            above = os.path.dirname(above)
        for place in places:
            try:
                owner = owner_of(place)
            except OSError:  # it does not exist yet
                continue
            if owner is not None:
                raise NotOurs(
                    "%s belongs to another user (uid %d), who could change the state that this training resumes from. Use a snapshot folder "
                    "of your own: guard(..., folder=...)." % (place, owner)
                )

    def take(self):
        """Take the lock. Raise InUse or NotOurs. The lock is released when the process exits, however it exits. Forks of the process, such as
        DataLoader workers, do not own it.
        """
        if any(claim.folder == self.folder for claim in _open):
            raise InUse(_words(self.folder, "in this process"))
        try:
            import fcntl

            make_folder(self.folder)
            self._refuse_foreign()
            self._handle = open_own(self._path, os.O_RDWR | os.O_CREAT)
            try:
                fcntl.lockf(self._handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except (BlockingIOError, PermissionError):
                os.close(self._handle)
                self._handle = None
                raise InUse(_words(self.folder, "in another process")) from None
        except (OSError, ImportError):
            pass  # a full disk, or a file system without locks: the first snapshot reports it
        _open.append(self)

    def leave(self, ended):
        if self in _open:
            _open.remove(self)
        if ended:
            _ended[self._given] = _ended.get(self._given, 0) + 1
        try:
            if self._handle is not None:
                os.unlink(self._path)
                os.close(self._handle)
                self._handle = None
            if ended and self.folder != self._given:
                os.rmdir(self.folder)
        except OSError:
            pass

    @property
    def _path(self):
        return os.path.join(self.folder, NAME % self._rank)


def _interactive():
    """Return whether this is a notebook or shell, in which a cell that runs again is the same training."""
    return hasattr(sys, "ps1") or "ipykernel" in sys.modules


def _words(folder, where):
    return "Another training %s uses %s for its snapshots. Give each training its own folder: guard(..., folder=...)." % (
        where,
        folder,
    )

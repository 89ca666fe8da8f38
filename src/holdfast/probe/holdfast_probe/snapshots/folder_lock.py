"""Whose a folder of snapshots is: one training's at a time. Each further training of a program has a folder of its own in it.

A training that ended is made again when its program is started again, and must not be given the state of one that came after it.
"""

import os
import sys

from .fs import make_folder, open_own, owner_of

NAME = "claim.rank-%d"
FOLDERS_ABOVE = ("guard", ".holdfast")
_ended: "dict[str, int]" = {}
"""How many trainings of this process came to their end, by folder."""
_open: "list[FolderLock]" = []


class InUse(RuntimeError):
    """Another training keeps its snapshots there."""


class NotOurs(RuntimeError):
    """The folder belongs to another user, who could change what the training goes on from."""


class FolderLock(object):
    def __init__(self, folder, rank):
        self._given = folder
        self._rank = rank
        self._handle = None
        number = 0 if _interactive() else _ended.get(folder, 0) + sum(claim._given == folder for claim in _open)
        self.folder = os.path.join(folder, "guard-%d" % (number + 1)) if number else folder
        self._refuse_foreign()

    def _refuse_foreign(self):
        """Raises NotOurs. Of the folders above, those that guard makes itself count too."""
        places, above = [self.folder, self._given], os.path.dirname(self._given)
        while os.path.basename(above) in FOLDERS_ABOVE:
            places.append(above)
            above = os.path.dirname(above)
        for place in places:
            try:
                owner = owner_of(place)
            except OSError:  # it is not there yet
                continue
            if owner is not None:
                raise NotOurs(
                    "%s belongs to another user (uid %d), who could change what this training goes on from. Keep its snapshots "
                    "in a folder of your own: guard(..., folder=...)." % (place, owner)
                )

    def take(self):
        """Raises InUse and NotOurs. A lock goes with its process, however that ends; and forks of it, as a loader's workers, do not have it."""
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
            pass  # a disk that is full, or that knows no locks: the first snapshot says so
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
    """In a notebook a cell that is run once more is the same training."""
    return hasattr(sys, "ps1") or "ipykernel" in sys.modules


def _words(folder, where):
    return "Another training %s keeps its snapshots in %s. Give each a folder of its own: guard(..., folder=...)." % (
        where,
        folder,
    )

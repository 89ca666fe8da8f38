"""Copies of last.pt as it was at each of the newest snapshots.

After a NaN Ultralytics itself goes back to last.pt. A training that goes on from a snapshot must find there what it had then: not the
file of an epoch that it has not come to yet, and not one that was torn by the kill.
"""

import os
import re
import shutil
import threading

KEPT = 2
NAME = re.compile(r"last-(\d{6})\.pt")


class Keeping(threading.Thread):
    """Copies what was just saved, while the training goes on. It is to be waited for before the next save."""

    def __init__(self, folder, trainer):
        super().__init__(name="holdfast last.pt", daemon=True)
        self._folder = folder
        self._path = str(trainer.last)
        self._to = os.path.join(folder, "last-%06d.pt" % trainer.epoch)
        self._error = None
        self.start()

    def run(self):
        try:
            os.makedirs(self._folder, mode=0o700, exist_ok=True)
            _copy(self._path, self._to)
            for epoch in _epochs(self._folder)[:-KEPT]:
                os.unlink(os.path.join(self._folder, "last-%06d.pt" % epoch))
        except OSError as error:
            self._error = error

    def wait(self):
        """Raises what went wrong."""
        self.join()
        if self._error is not None:
            raise self._error


def give_back(folder, trainer, epoch):
    """`epoch` is that of the last save before the snapshot; None where there was none."""
    if epoch is not None and epoch in _epochs(folder):
        _copy(os.path.join(folder, "last-%06d.pt" % epoch), str(trainer.last))


def clear(folder):
    for epoch in _epochs(folder):
        os.unlink(os.path.join(folder, "last-%06d.pt" % epoch))


def _epochs(folder):
    try:
        found = (NAME.fullmatch(name) for name in os.listdir(folder))
    except OSError:
        return []
    return sorted(int(match[1]) for match in found if match)


def _copy(path, to):
    temporary = "%s.%d.tmp" % (to, os.getpid())
    try:
        shutil.copyfile(path, temporary)
        os.replace(temporary, to)
    except OSError:
        if os.path.exists(temporary):
            os.unlink(temporary)
        raise

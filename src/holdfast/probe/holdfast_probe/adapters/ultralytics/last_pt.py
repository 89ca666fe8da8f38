"""Copies of last.pt as it was at each of the snapshots that there are.

After a NaN Ultralytics itself goes back to last.pt. A training that goes on from a snapshot must find there what it had then: not the
file of an epoch that it has not come to yet, and not one that was torn by the kill. How many epochs are saved between two
snapshots, and which snapshot is gone on from, is not known before.
"""

import os
import re
import threading

from ...snapshots.fs import replace_with

NAME = re.compile(r"last-(\d{6})\.pt")


class LastPtCopies(object):
    """Those that go with the snapshots of one training, in the same folder."""

    def __init__(self, store):
        self._store = store
        self._folder = store.folder
        self._spans = {}
        """Epoch of a save -> positions of the first and the last snapshot that go back to it."""
        self._inherited = frozenset()
        """Epochs whose copies an earlier life left for snapshots of its own."""
        self._keeping = None

    def snapshot_taken(self, position, epoch):
        """`epoch` is that of the last save before it; None where there was none."""
        if epoch is not None:
            first, _ = self._spans.get(epoch, (position, position))
            self._spans[epoch] = (first, position)

    def keep(self, trainer):
        """Of what was just saved, while the training goes on."""
        self._spans, self._inherited = self._still_needed()
        needed = {trainer.epoch, *self._spans, *self._inherited}
        self._keeping = CopyThread(self._folder, str(trainer.last), trainer.epoch, needed)

    def wait(self):
        """Until what was saved before is copied; it is to be waited for before the next save. Raises what went wrong."""
        keeping, self._keeping = self._keeping, None
        if keeping is not None:
            keeping.wait()

    def give_back(self, torch, trainer, position, epoch):
        """As they were at that snapshot. Returns why last.pt is not what it was then, or None; raises OSError."""
        epochs = _epochs(self._folder)
        self.snapshot_taken(position, epoch)
        self._inherited = frozenset(one for one in epochs if epoch is not None and one <= epoch)
        # Later ones are of what is made again: where that cannot be copied, they are not to be taken for it.
        _remove(self._folder, set(epochs) - self._inherited)
        if epoch in epochs:
            _copy(_path(self._folder, epoch), str(trainer.last))
        elif epoch is not None and _epoch_in(torch, str(trainer.last)) != epoch:
            return "there is no copy of it as it was saved after epoch %d" % (epoch + 1)
        return None

    def clear(self):
        """The training is over, or starts afresh."""
        _remove(self._folder, _epochs(self._folder))

    def _still_needed(self):
        there = self._store.positions()
        newest = max(self._spans, default=None)  # its snapshot may still be on its way to the disk
        spans = {
            epoch: (first, end)
            for epoch, (first, end) in self._spans.items()
            if epoch == newest or any(first <= position <= end for position in there)
        }
        oldest = min((first for first, _ in self._spans.values()), default=None)
        earlier = oldest is None or any(position < oldest for position in there)
        return spans, self._inherited if earlier else frozenset()


class CopyThread(threading.Thread):
    def __init__(self, folder, path, epoch, needed):
        super().__init__(name="holdfast last.pt", daemon=True)
        self._folder = folder
        self._path = path
        self._epoch = epoch
        self._needed = needed
        self._error = None
        self.start()

    def run(self):
        try:
            os.makedirs(self._folder, mode=0o700, exist_ok=True)
            _copy(self._path, _path(self._folder, self._epoch))
            _remove(self._folder, set(_epochs(self._folder)) - self._needed)
        except OSError as error:
            self._error = error

    def wait(self):
        self.join()
        if self._error is not None:
            raise self._error


def _path(folder, epoch):
    return os.path.join(folder, "last-%06d.pt" % epoch)


def _epochs(folder):
    try:
        found = (NAME.fullmatch(name) for name in os.listdir(folder))
    except OSError:
        return []
    return sorted(int(match[1]) for match in found if match)


def _epoch_in(torch, path):
    """Which epoch's end a file of Ultralytics' is of; None where it cannot be read."""
    try:
        return torch.load(path, map_location="cpu", weights_only=False).get("epoch")
    except Exception:
        return None


def _remove(folder, epochs):
    for epoch in epochs:
        os.unlink(_path(folder, epoch))


def _copy(path, to):
    with open(path, "rb") as file:
        replace_with(to, iter(lambda: file.read(1 << 22), b""))

"""Copies of last.pt as it was at each existing snapshot.

After a NaN, Ultralytics itself goes back to last.pt. A resumed training must find the file that it had at the snapshot:
not the file of an epoch that it has not reached yet, and not a file that was truncated by the kill. It is unknown in
advance how many epochs are saved between two snapshots and which snapshot will be resumed from.
"""

import os
import re
import threading

from ...snapshots.fs import replace_with_chunks

NAME = re.compile(r"last-(\d{6})\.pt")


class LastPtCopies(object):
    """The copies for the snapshots of one training, in the same folder."""

    def __init__(self, store):
        self._store = store
        self._folder = store.folder
        self._spans = {}
        """Epoch of a save -> positions of the first and the last snapshot that need it."""
        self._inherited = frozenset()
        """Epochs whose copies an earlier attempt left for its snapshots."""
        self._copy_thread = None

    def add_snapshot(self, position, epoch):
        """Record a snapshot. `epoch` is that of the last save before it; None if there was none."""
        if epoch is not None:
            first, _ = self._spans.get(epoch, (position, position))
            self._spans[epoch] = (first, position)

    def start_copy(self, trainer):
        """Copy the file that was just saved while the training continues."""
        self._spans, self._inherited = self._find_needed()
        needed = {trainer.epoch, *self._spans, *self._inherited}
        self._copy_thread = CopyThread(self._folder, str(trainer.last), trainer.epoch, needed)

    def wait(self):
        """Wait until the previous save is copied; required before the next save. Raise the error of the copy."""
        copy_thread, self._copy_thread = self._copy_thread, None
        if copy_thread is not None:
            copy_thread.wait()

    def restore(self, torch, trainer, position, epoch):
        """Restore last.pt as it was at that snapshot. Return why that is impossible, or None; raise OSError."""
        epochs = _list_epochs(self._folder)
        self.add_snapshot(position, epoch)
        self._inherited = frozenset(saved for saved in epochs if epoch is not None and saved <= epoch)
        # Later copies belong to repeated epochs: if a new copy fails, the old one must not be mistaken for it.
        _remove(self._folder, set(epochs) - self._inherited)
        if epoch in epochs:
            _copy(_path(self._folder, epoch), str(trainer.last))
        elif epoch is not None and _read_epoch(torch, str(trainer.last)) != epoch:
            return "there is no copy saved after epoch %d" % (epoch + 1)
        return None

    def clear(self):
        """Remove all copies: the training is over or starts over."""
        _remove(self._folder, _list_epochs(self._folder))

    def _find_needed(self):
        positions = self._store.positions()
        newest = max(self._spans, default=None)  # its snapshot may not be on disk yet
        spans = {
            epoch: (first, end)
            for epoch, (first, end) in self._spans.items()
            if epoch == newest or any(first <= position <= end for position in positions)
        }
        oldest = min((first for first, _ in self._spans.values()), default=None)
        earlier = oldest is None or any(position < oldest for position in positions)
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
            _remove(self._folder, set(_list_epochs(self._folder)) - self._needed)
        except OSError as error:
            self._error = error

    def wait(self):
        self.join()
        if self._error is not None:
            raise self._error


def _path(folder, epoch):
    return os.path.join(folder, "last-%06d.pt" % epoch)


def _list_epochs(folder):
    try:
        found = (NAME.fullmatch(name) for name in os.listdir(folder))
    except OSError:
        return []
    return sorted(int(match[1]) for match in found if match)


def _read_epoch(torch, path):
    """Return the epoch that an Ultralytics checkpoint was saved after; None if it cannot be read."""
    try:
        return torch.load(path, map_location="cpu", weights_only=False).get("epoch")
    except Exception:
        return None


def _remove(folder, epochs):
    for epoch in epochs:
        os.unlink(_path(folder, epoch))


def _copy(path, to):
    with open(path, "rb") as file:
        replace_with_chunks(to, iter(lambda: file.read(1 << 22), b""))

"""The losses of the newest batches, which survive a kill: repeated batches are compared with the original ones.

A loss depends on the weights, the data and all random numbers before it. So losses that are equal bit for bit show that
a training resumed exactly. They are kept in a small ring buffer in a memory-mapped file, which costs nothing and
survives a kill.
"""

import mmap
import os
import struct

from .fs import Files, make_folder, open_own

NAME = "trace"
SLOTS = 1 << 16
_RECORD = struct.Struct("<qd")
_LOSS = struct.Struct("<d")
_SIZE = SLOTS * _RECORD.size


def _map_file(folder):
    """Map the file. Allocate all of it on disk first: a page without disk space would end the training with SIGBUS."""
    make_folder(folder)
    descriptor = open_own(os.path.join(folder, NAME), os.O_RDWR | os.O_CREAT)
    try:
        if os.fstat(descriptor).st_size != _SIZE:
            os.ftruncate(descriptor, 0)
            try:
                Files().write(descriptor, bytes(_SIZE))
            except OSError:
                os.ftruncate(descriptor, 0)
                raise
        return mmap.mmap(descriptor, _SIZE)
    finally:
        os.close(descriptor)


class LossTrace(object):
    def __init__(self, folder, emit):
        """`emit(event, **fields)` writes to the run's journal."""
        self._emit = emit
        self._previous = {}
        self._last = 0
        self._compared = 0
        self._first_difference = None
        try:
            self._ring = _map_file(folder)
        except (OSError, ValueError):  # a full disk: losses cannot be compared after a crash, nothing worse
            self._ring = bytearray(_SIZE)

    def clear(self):
        """Clear the trace at a fresh start: the old losses belong to another training."""
        self._ring[:] = bytes(_SIZE)

    def resume_from(self, position):
        """Compare the batches after this position, which an earlier attempt computed and this one repeats."""
        records = _RECORD.iter_unpack(self._ring[:])
        self._previous = {number: _LOSS.pack(loss) for number, loss in records if number > position}
        self._last = max(self._previous, default=0)

    def add(self, position, step, loss):
        """Record the loss of a batch. `position` is the number of batches done."""
        _RECORD.pack_into(self._ring, position % SLOTS * _RECORD.size, position, loss)
        if not self._previous:
            return
        previous = self._previous.pop(position, None)
        if previous is not None:
            self._compared += 1
            if previous != _LOSS.pack(loss) and self._first_difference is None:
                self._first_difference = step
        if not self._previous or self._first_difference is not None or position > self._last:
            self._previous = {}
            if self._compared:
                self._emit("replayed", step=step, compared=self._compared, differs_at=self._first_difference)

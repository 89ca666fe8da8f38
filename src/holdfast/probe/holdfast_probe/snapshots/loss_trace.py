"""The losses of the newest batches, which survive a kill: repeated batches are compared with the original ones.

A loss depends on the weights, the data and all random numbers before it. So losses that are equal bit for bit show that a training
resumed exactly. They are kept in a small ring buffer in a memory-mapped file, which costs nothing and survives a kill.
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


def _mapped(folder):
    """Map the file. All of it is allocated on disk first: a page without disk space would end the training with SIGBUS."""
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
    def __init__(self, folder, tell):
        """`tell(event, **fields)` writes to the run's journal."""
        self._tell = tell
        self._before = {}
        self._last = 0
        self._compared = 0
        self._differs = None
        try:
            self._ring = _mapped(folder)
        except (OSError, ValueError):  # a full disk: losses cannot be compared after a crash, nothing worse
            self._ring = bytearray(_SIZE)

    def begins(self):
        """Clear the trace at a fresh start: the old losses belong to another training."""
        self._ring[:] = bytes(_SIZE)

    def goes_on_from(self, position):
        """Compare the batches after this position, which an earlier attempt computed and this one repeats."""
        records = _RECORD.iter_unpack(self._ring[:])
        self._before = {number: _LOSS.pack(loss) for number, loss in records if number > position}
        self._last = max(self._before, default=0)

    def add(self, position, step, loss):
        """Record the loss of a batch. `position` is the number of batches done."""
        _RECORD.pack_into(self._ring, position % SLOTS * _RECORD.size, position, loss)
        if not self._before:
            return
        before = self._before.pop(position, None)
        if before is not None:
            self._compared += 1
            if before != _LOSS.pack(loss) and self._differs is None:
                self._differs = step
        if not self._before or self._differs is not None or position > self._last:
            self._before = {}
            if self._compared:
                self._tell("replayed", step=step, compared=self._compared, differs_at=self._differs)

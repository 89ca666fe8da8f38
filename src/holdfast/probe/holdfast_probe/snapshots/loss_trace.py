"""The losses of the newest batches, where a killed process leaves them: what is made again is compared with what was.

A loss follows from the weights, the data and all random numbers before it, so losses that are equal bit for bit show that a
training goes on as it would have. They lie in a ring of a few records in a mapped file, which costs nothing and outlives a kill.
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
    """All of it is on the disk from the start: a page for which there is no room would end the training with SIGBUS."""
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
        """`tell(event, **fields)` writes to the run's record."""
        self._tell = tell
        self._before = {}
        self._last = 0
        self._compared = 0
        self._differs = None
        try:
            self._ring = _mapped(folder)
        except (OSError, ValueError):  # a full disk: nothing is left to compare after a death, and that is all
            self._ring = bytearray(_SIZE)

    def begins(self):
        """A fresh start: what lies there is another training's."""
        self._ring[:] = bytes(_SIZE)

    def goes_on_from(self, position):
        """What an earlier life made beyond this is going to be made again."""
        records = _RECORD.iter_unpack(self._ring[:])
        self._before = {number: _LOSS.pack(loss) for number, loss in records if number > position}
        self._last = max(self._before, default=0)

    def add(self, position, step, loss):
        """After a batch: so many are done, and this was its loss."""
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

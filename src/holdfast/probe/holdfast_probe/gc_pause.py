"""Python's collector, which looks through all of a process when enough was made: not because of what Holdfast makes, and not while a training is
only being imported.

For a training with Ultralytics that takes 0.2 s. What is made and let go again while it is off does not count.
"""

import gc
import sys
import time

STARTING_SECONDS = 60.0
YOUNG_COLLECTIONS = 150
MEMORY_BYTES = 1 << 30
"""What takes longer than this, makes more than this or has grown by more than this before it trains does something else than start: its
garbage may be large. Ultralytics: 3 s, 90 young collections, 0.5 GiB.
"""


class NoCollection(object):
    """While it is entered, no garbage is collected."""

    def __enter__(self):
        self._was_on = gc.isenabled()
        gc.disable()

    def __exit__(self, *_):
        if self._was_on:
            gc.enable()
        return False


class GcPause(object):
    """From the import of torch to the first batch. Nearly all that is made there stays: each full collection looks through all of it once
    more and finds next to nothing (with Ultralytics five of them, 0.4 s of a start of 2.7 s). They wait; young garbage is collected as ever.

    A full collection is due when so many young ones have been since the last. After each of those, what is left counts as looked
    through: nothing that a program can see or set is touched.
    """

    def __init__(self):
        """Before any of the program's own lines."""
        self._frozen = gc.get_freeze_count()
        """Python 3.12 freezes some of its own."""
        self._putting_off = False

    def begins(self):
        if not _has_generations():
            return
        self._until = time.monotonic() + STARTING_SECONDS
        self._left = YOUNG_COLLECTIONS
        self._most_memory = _most_memory() + MEMORY_BYTES
        self._putting_off = True
        gc.callbacks.append(self._collected)

    def _collected(self, phase, info):
        if not self._putting_off or phase != "stop" or info["generation"] != 1:
            return
        self._left -= 1
        if self._does_more_than_start():
            self._putting_off = False
        else:
            gc.freeze()
            gc.unfreeze()
            self._frozen = 0

    def _does_more_than_start(self):
        if self._left < 0 or time.monotonic() > self._until or _most_memory() > self._most_memory:
            return True
        return gc.get_freeze_count() != self._frozen  # what somebody has frozen is not ours to thaw

    def ended(self):
        """It trains. The next full collection comes when Python's own rule says so, counted from here."""
        self._putting_off = False
        if self._collected in gc.callbacks:
            gc.callbacks.remove(self._collected)


def _has_generations():
    """Whether old objects are looked through all at once: Python 3.14 does it bit by bit, one without a global lock has no generations."""
    return sys.version_info < (3, 14) and getattr(sys, "_is_gil_enabled", lambda: True)()


def _most_memory():
    """The most that this process has held, in bytes."""
    import resource

    most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return most if sys.platform == "darwin" else most * 1024

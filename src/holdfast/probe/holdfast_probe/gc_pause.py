"""Keeping Python from running full garbage collections because of Holdfast, or while a training is being imported.

A full collection takes 0.2 s for an Ultralytics training. Objects that are created and freed while the collector is off
do not count.
"""

import gc
import sys
import time

MAX_START_SECONDS = 60.0
MAX_YOUNG_COLLECTIONS = 150
MAX_MEMORY_BYTES = 1 << 30
"""Limits for a start-up. A process that exceeds one of them before it trains is doing more than starting, and its
garbage may be large. Ultralytics takes 3 s, 90 young collections and 0.5 GiB."""


class NoCollection(object):
    """Context manager that turns the garbage collector off."""

    def __enter__(self):
        self._was_on = gc.isenabled()
        gc.disable()

    def __exit__(self, *_):
        if self._was_on:
            gc.enable()
        return False


class GcPause(object):
    """Postpones full collections from the import of torch to the first batch.

    Nearly everything that is allocated in that time stays alive, so each full collection scans all of it again and
    frees next to nothing (with Ultralytics: five collections, 0.4 s of a start-up of 2.7 s). Young garbage is still
    collected as usual.

    Python runs a full collection after a certain number of younger ones. After each of those, the surviving objects are
    marked as already scanned. Nothing that a program can see or set is changed.
    """

    def __init__(self):
        """Must run before any line of the program."""
        self._frozen = gc.get_freeze_count()
        """Python 3.12 freezes some of its own objects."""
        self._is_active = False

    def begin(self):
        if not _has_generations():
            return
        self._until = time.monotonic() + MAX_START_SECONDS
        self._left = MAX_YOUNG_COLLECTIONS
        self._max_memory = _peak_memory() + MAX_MEMORY_BYTES
        self._is_active = True
        gc.callbacks.append(self._on_collection)

    def _on_collection(self, phase, info):
        if not self._is_active or phase != "stop" or info["generation"] != 1:
            return
        self._left -= 1
        if self._exceeds_start_limits():
            self._is_active = False
        else:
            gc.freeze()
            gc.unfreeze()
            self._frozen = 0

    def _exceeds_start_limits(self):
        if self._left < 0 or time.monotonic() > self._until or _peak_memory() > self._max_memory:
            return True
        return gc.get_freeze_count() != self._frozen  # the program has frozen objects: do not unfreeze them

    def end(self):
        """Stop postponing: the training has begun. From now on Python's own rule applies."""
        self._is_active = False
        if self._on_collection in gc.callbacks:
            gc.callbacks.remove(self._on_collection)


def _has_generations():
    """Return False for Python 3.14, which scans incrementally, and for free-threaded Python."""
    return sys.version_info < (3, 14) and getattr(sys, "_is_gil_enabled", lambda: True)()


def _peak_memory():
    """Return the peak resident memory of this process in bytes."""
    import resource

    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024

"""Python's collector, which looks through all of a process when enough was made: not because of what Holdfast makes, and not while a training is
only being imported.

For a training with Ultralytics that takes 0.2 s. What is made and let go again while it is off does not count.
"""

import gc
import time

NEVER = 2**31 - 1
STARTING_SECONDS = 60.0
"""What has not begun to train by then is no start any more."""


class NoCollection(object):
    """While it is entered, no garbage is collected."""

    def __enter__(self):
        self._was_on = gc.isenabled()
        gc.disable()

    def __exit__(self, *_):
        if self._was_on:
            gc.enable()
        return False


class Start(object):
    """From the import of torch to the first batch. Nearly all that is made there stays: each full collection looks through all of it once
    more and finds next to nothing (with Ultralytics five of them, 0.4 s of a start of 2.7 s). They wait; young garbage is collected as ever.
    """

    def __init__(self):
        """Before any of the program's own lines."""
        self._until = None
        self._frozen = gc.get_freeze_count()
        """Python 3.12 freezes some of its own."""

    def begins(self):
        first, second, self._full = gc.get_threshold()
        if not self._full:
            return  # as somebody wants it
        gc.set_threshold(first, second, NEVER)
        self._until = time.monotonic() + STARTING_SECONDS
        gc.callbacks.append(self._collecting)

    def _collecting(self, *_):
        if self._until is not None and time.monotonic() > self._until:
            self._as_it_was()

    def ended(self):
        """It trains. What there is by now counts as looked through: the next full collection comes when Python's rule finds enough that is new."""
        if self._until is None or not self._as_it_was():
            return
        if gc.isenabled() and gc.get_freeze_count() == self._frozen:  # what somebody has frozen is not ours to thaw
            gc.freeze()
            gc.unfreeze()

    def _as_it_was(self):
        """False where the program has set the collector up in its own way meanwhile."""
        self._until = None
        if self._collecting in gc.callbacks:
            gc.callbacks.remove(self._collecting)
        first, second, full = gc.get_threshold()
        if full != NEVER:
            return False
        gc.set_threshold(first, second, self._full)
        return True

"""Reads the newest snapshot while the program that will resume from it is still being imported."""

import threading


class Prefetch(object):
    def __init__(self, torch, store):
        self._snapshot = None
        self._error = None
        self._skipped = []
        self._thread = threading.Thread(target=self._read, args=(torch, store), name="holdfast reading", daemon=True)
        self._thread.start()

    def _read(self, torch, store):
        try:
            self._snapshot = store.read_newest(torch, lambda *skipped: self._skipped.append(skipped))
        except Exception as error:  # raised in read_newest
            self._error = error

    def read_newest(self, on_corrupt):
        """Return the newest snapshot, as `Store.read_newest` does."""
        self._thread.join()
        for skipped in self._skipped:
            on_corrupt(*skipped)
        if self._error is not None:
            raise self._error
        return self._snapshot

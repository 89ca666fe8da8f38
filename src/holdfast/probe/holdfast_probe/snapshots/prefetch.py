"""Reads the newest snapshot while the program that will resume from it is still being imported."""

import threading


class Prefetch(object):
    def __init__(self, torch, store):
        self._found = None
        self._error = None
        self._torn = []
        self._thread = threading.Thread(target=self._read, args=(torch, store), name="holdfast reading", daemon=True)
        self._thread.start()

    def _read(self, torch, store):
        try:
            self._found = store.newest(torch, lambda *told: self._torn.append(told))
        except Exception as error:  # raised in read_newest
            self._error = error

    def newest(self, torn):
        """Return the newest snapshot, as `Store.read_newest` does."""
        self._thread.join()
        for told in self._torn:
            torn(*told)
        if self._error is not None:
            raise self._error
        return self._found

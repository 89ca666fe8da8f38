"""Reads the newest snapshot while the program that will go on from it is still being imported."""

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
        except Exception as error:  # it is raised where it is asked for
            self._error = error

    def newest(self, torn):
        """As the store's own `newest`."""
        self._thread.join()
        for told in self._torn:
            torn(*told)
        if self._error is not None:
            raise self._error
        return self._found

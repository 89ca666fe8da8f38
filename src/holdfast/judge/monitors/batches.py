"""Batches: whether they differ, and how large they are."""

from __future__ import annotations

from holdfast.judge.series import Series
from holdfast.words import events

KEPT_HASHES = 4096


class Batches:
    def __init__(self) -> None:
        self.hashed = 0
        self.same_in_a_row = 0
        """Hashed batches up to the newest that are all the same one."""
        self.different = 0
        """At least so many different ones were seen."""
        self.samples = Series()
        """Samples a backward, by step."""
        self.in_epoch: int | None = None
        """Batches that the last whole epoch had."""
        self._newest: str | None = None
        self._hashes: set[str] = set()

    def fold(self, event: events.Step | events.Steps) -> None:
        if isinstance(event, events.Step):
            if event.samples and event.backwards:
                self.samples.add(event.step, event.samples / event.backwards)
            if event.batch is not None:
                self.hashed += 1
                self.same_in_a_row = self.same_in_a_row + 1 if event.batch == self._newest else 1
                self._newest = event.batch
                if event.batch not in self._hashes and len(self._hashes) < KEPT_HASHES:
                    self._hashes.add(event.batch)
                    self.different += 1
            return
        if event.samples and event.backwards:
            each = event.samples / event.backwards
            count = event.last - event.first + 1
            self.samples.add_many(event.last, n=count, mean=each, low=each, high=each, zeros=0, last=each)
        if event.batches:
            self.hashed += event.batches
            self.same_in_a_row = self.same_in_a_row + event.batches if event.different == 1 else 1
            self.different = max(self.different, event.different)

    def fold_epoch(self, event: events.Epoch) -> None:
        self.in_epoch = event.batches

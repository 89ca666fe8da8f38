"""Batches: whether they differ, and how large they are."""

from __future__ import annotations

from holdfast.diagnosis.aggregators.running_stats import RunningMedian, Streak
from holdfast.diagnosis.series import Series
from holdfast.schema import events

KEPT_HASHES = 4096
SMALL = 0.125
"""A batch of at most this part of the typical one is small."""
ENOUGH_TO_BE_TYPICAL = 20


class Batches:
    def __init__(self) -> None:
        self.hashed = 0
        self.same_in_a_row = 0
        """Hashed batches up to the newest that are all the same one."""
        self.different = 0
        """At least so many different ones were seen."""
        self.samples = Series()
        """Samples a backward, by step."""
        self.typical = RunningMedian()
        """Samples a backward, small ones left out."""
        self.small = Streak()
        """Steps in a row whose batches are small against the typical one."""
        self.in_epoch: int | None = None
        """Batches that the last whole epoch had."""
        self.steps_in_epoch: int | None = None
        """Steps that it had."""
        self._epoch_ended_at = 0
        self._newest: str | None = None
        self._hashes: set[str] = set()

    def fold(self, event: events.Step | events.Steps) -> None:
        if isinstance(event, events.Step):
            if event.samples and event.backwards:
                self._size(event.samples / event.backwards, event.step, event.step)
            if event.batch is not None:
                self._hash(event.batch)
            return
        if event.samples and event.backwards:
            self._size(event.samples / event.backwards, event.first, event.last)
        if event.different > 1:
            self.hashed += event.batches
            self.same_in_a_row = 1
            self.different = max(self.different, event.different)
        elif event.batches > 1:  # a single hash of a window cannot be compared with those before it
            self.hashed += event.batches
            self.same_in_a_row += event.batches

    def _size(self, each: float, first: int, last: int) -> None:
        count = last - first + 1
        self.samples.add_many(last, n=count, mean=each, low=each, high=each, zeros=0, last=each)
        if self.typical.count >= ENOUGH_TO_BE_TYPICAL and each <= SMALL * self.typical.median:
            self.small.add(last, count, first)
        else:
            if self.small.count:
                self.small.end()
            self.typical.add(each, count)

    def _hash(self, batch: str) -> None:
        self.hashed += 1
        self.same_in_a_row = self.same_in_a_row + 1 if batch == self._newest else 1
        self._newest = batch
        if batch not in self._hashes and len(self._hashes) < KEPT_HASHES:
            self._hashes.add(batch)
            self.different += 1

    def fold_epoch(self, event: events.Epoch) -> None:
        self.in_epoch = event.batches
        self.steps_in_epoch = event.step - self._epoch_ended_at
        self._epoch_ended_at = event.step

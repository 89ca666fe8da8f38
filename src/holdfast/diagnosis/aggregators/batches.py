"""Batches: whether they differ, and their sizes."""

from __future__ import annotations

from holdfast.diagnosis.aggregators.running_stats import RunningMedian, Streak
from holdfast.diagnosis.series import Series, span_of
from holdfast.schema import events

MAX_HASHES = 4096
SMALL = 0.125
"""A batch of at most this fraction of the typical size is small."""
MIN_FOR_TYPICAL = 20


class Batches:
    def __init__(self) -> None:
        self.hashed = 0
        self.same_in_a_row = 0
        """Number of consecutive hashed batches, up to the newest, that are identical."""
        self.different = 0
        """At least this many different batches were seen."""
        self.samples = Series()
        """Samples per backward pass, by step."""
        self.typical = RunningMedian()
        """Samples per backward pass, without small batches."""
        self.small = Streak()
        """Consecutive steps with small batches, compared with the typical size."""
        self.in_epoch: int | None = None
        """Number of batches in the last complete epoch."""
        self.steps_in_epoch: int | None = None
        """Number of steps in the last complete epoch."""
        self._epoch_ended_at = 0
        self._newest: str | None = None
        self._hashes: set[str] = set()

    def fold(self, event: events.Step | events.Steps) -> None:
        if event.samples and event.backwards:
            self._add_size(event.samples / event.backwards, *span_of(event))
        if isinstance(event, events.Step):
            if event.batch is not None:
                self._add_hash(event.batch)
        elif event.different > 1:
            self.hashed += event.batches
            self.same_in_a_row = 1
            self.different = max(self.different, event.different)
        elif event.batches > 1:  # a window with a single hash cannot be compared with earlier ones
            self.hashed += event.batches
            self.same_in_a_row += event.batches

    def _add_size(self, samples: float, first: int, last: int) -> None:
        count = last - first + 1
        self.samples.add(last, samples, count)
        if self.typical.count >= MIN_FOR_TYPICAL and samples <= SMALL * self.typical.median:
            self.small.add(last, count, first)
        else:
            self.small.end()
            self.typical.add(samples, count)

    def _add_hash(self, batch: str) -> None:
        self.hashed += 1
        self.same_in_a_row = self.same_in_a_row + 1 if batch == self._newest else 1
        self._newest = batch
        if batch not in self._hashes and len(self._hashes) < MAX_HASHES:
            self._hashes.add(batch)
            self.different += 1

    def fold_epoch(self, event: events.Epoch) -> None:
        self.in_epoch = event.batches
        self.steps_in_epoch = event.step - self._epoch_ended_at
        self._epoch_ended_at = event.step

"""The typical value of a series of positive numbers, and the length of a streak, in a few counters."""

from __future__ import annotations

import math
from dataclasses import dataclass

UPDATE_EVERY = 16


class RunningMedian:
    """The median of positive numbers, accurate to a factor of two."""

    def __init__(self) -> None:
        self.count = 0
        self._by_octave: dict[int, int] = {}
        self._median = 0.0
        self._updated_at = 0

    def add(self, value: float, n: int = 1) -> None:
        if value > 0.0 and math.isfinite(value):
            octave = math.frexp(value)[1]
            self._by_octave[octave] = self._by_octave.get(octave, 0) + n
            self.count += n

    @property
    def median(self) -> float:
        """0.0 if there are no values."""
        if self.count and (not self._updated_at or self.count - self._updated_at >= UPDATE_EVERY):
            self._updated_at = self.count
            below = 0
            for octave in sorted(self._by_octave):
                below += self._by_octave[octave]
                if 2 * below >= self.count:
                    self._median = math.ldexp(0.75, octave)
                    break
        return self._median


@dataclass
class Streak:
    """Consecutive observations of the same condition, up to the newest."""

    count: int = 0
    since: int | None = None
    """The step of the first observation."""
    until: int | None = None

    def add(self, step: int, n: int = 1, first: int | None = None) -> None:
        """Add an observation at a step, or in `n` steps from `first` to `step`. A step counts only once."""
        if self.until is not None and step <= self.until:
            return
        self.count += n
        self.since = (step if first is None else first) if self.since is None else self.since
        self.until = step

    def end(self) -> None:
        self.count, self.since, self.until = 0, None, None

    @property
    def steps(self) -> int:
        """The number of steps that the streak spans."""
        return 0 if self.since is None or self.until is None else self.until - self.since + 1

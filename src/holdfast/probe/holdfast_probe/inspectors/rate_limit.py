"""A rate limit for repeated events, and a running median of costs."""

import time


class RateLimit(object):
    """Allows the first `first` events immediately, then at most one every `seconds` seconds."""

    def __init__(self, first, seconds, now=time.monotonic):
        self._left = first
        self._seconds = seconds
        self._now = now
        self._last = now()

    def try_acquire(self):
        """Return True if an event may be emitted now, and count it as emitted."""
        now = self._now()
        if self._left > 0:
            self._left -= 1
        elif now - self._last < self._seconds:
            return False
        self._last = now
        return True


class RunningMedian(object):
    """Tracks the median of a series. A mean would be skewed by the moments when the machine ran something else."""

    STEP = 1.15

    def __init__(self, first=None):
        self.value = first

    def add(self, value):
        if self.value is None:
            self.value = value
        elif value > self.value:
            self.value *= self.STEP
        else:
            self.value /= self.STEP

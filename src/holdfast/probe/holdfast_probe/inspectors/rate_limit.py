"""How often something that repeats is told, and what it typically costs."""

import time


class RateLimit(object):
    """The first few times at once, after that at most once in so many seconds."""

    def __init__(self, first, seconds, now=time.monotonic):
        self._left = first
        self._seconds = seconds
        self._now = now
        self._last = now()

    def due(self):
        """True when it may be told now; that counts as told."""
        now = self._now()
        if self._left > 0:
            self._left -= 1
        elif now - self._last < self._seconds:
            return False
        self._last = now
        return True


class RunningMean(object):
    """Follows the median of a series. A mean would follow the moments in which the machine ran something else."""

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

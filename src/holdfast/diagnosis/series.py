"""A series of any length in bounded memory, with exact totals and uniform resolution."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, NamedTuple, TypeVar

from holdfast.schema.events import Step, Steps, WindowStats, as_number

if TYPE_CHECKING:
    from collections.abc import Callable

T = TypeVar("T")


class Point(NamedTuple):
    """One or more consecutive values, merged."""

    step: int
    """The step of the last value."""
    n: int
    mean: float
    low: float
    high: float


class Series:
    """Values by step. When there are too many points, neighbours are merged in pairs."""

    def __init__(self, most: int = 2048) -> None:
        self.points: list[Point] = []
        self._most = most
        self._per_point = 1
        self.count = 0
        """Number of finite values."""
        self.zeros = 0
        self.zeros_at_first = 0
        """Number of values that were exactly zero before the first nonzero value."""
        self.same_in_a_row = 0
        """Number of consecutive values, up to the newest, that are exactly the same."""
        self.first: float | None = None
        """The first finite value."""
        self.highest = -math.inf
        self.lowest = math.inf
        self.nonfinite = 0
        """Number of values that were not finite."""
        self.nonfinite_in_a_row = 0
        self.first_nonfinite_step: int | None = None
        self.nonfinite_since: int | None = None
        """The step since which no value was finite; None if the newest value is finite."""
        self.last_nonfinite_step: int | None = None
        self.last: float | None = None
        """The last value, finite or not."""

    def add(self, step: int, value: float, n: int = 1) -> None:
        """Add a value that was the same in `n` steps, the last of which is `step`."""
        if math.isfinite(value):
            zeros = 0 if value else n
            self.add_window(step, WindowStats(n=n, mean=value, low=value, high=value, zeros=zeros, last=value))
        else:
            self._add_nonfinite(step, n)
            self.last = value

    def add_event(self, event: Step | Steps, value: float | str | WindowStats | None) -> None:
        """Add the value of a step, or the statistics of a window at its last step."""
        _, last = span_of(event)
        if isinstance(value, WindowStats):
            self.add_window(last, value)
        elif (number := as_number(value)) is not None:
            self.add(last, number)

    def add_window(self, step: int, window: WindowStats) -> None:
        """Add a window of values that ends at `step`."""
        n, low, high = window.n, window.low, window.high
        if window.nonfinite:
            self._add_nonfinite(step, window.nonfinite)
        if not n:
            return
        if window.zeros == n and self.zeros == self.count and not self.nonfinite:
            self.zeros_at_first += n
        if low != high:
            self.same_in_a_row = 1
        else:
            self.same_in_a_row = self.same_in_a_row + n if low == self.last and not self.nonfinite_in_a_row else n
        self.nonfinite_in_a_row = 0
        self.nonfinite_since = None
        self.first = (low if low == high else window.mean) if self.first is None else self.first
        self.highest, self.lowest = max(self.highest, high), min(self.lowest, low)
        self.count += n
        self.zeros += window.zeros
        self.last = window.last
        point = Point(step, n, window.mean, low, high)
        if self.points and self.points[-1].n + n <= self._per_point:
            self.points[-1] = _merge(self.points[-1], point)
        else:
            self.points.append(point)
        if len(self.points) > self._most:
            self._per_point *= 2
            self.points = merge_pairs(self.points, _merge)

    def until(self, step: int) -> Series:
        """Return the series as it was at a step, at the resolution of its points and without the values that were not finite."""
        kept = Series(self._most)
        kept._per_point = self._per_point
        for point in self.points:
            if point.step > step:
                break
            _, n, mean, low, high = point
            zeros = n if low == high == 0.0 else 0
            kept.add_window(point.step, WindowStats(n=n, mean=mean, low=low, high=high, zeros=zeros, last=mean))
        return kept

    def _add_nonfinite(self, step: int, nonfinite: int) -> None:
        self.nonfinite += nonfinite
        self.nonfinite_in_a_row += nonfinite
        self.first_nonfinite_step = step if self.first_nonfinite_step is None else self.first_nonfinite_step
        self.nonfinite_since = step if self.nonfinite_since is None else self.nonfinite_since
        if self.last_nonfinite_step is None or step > self.last_nonfinite_step:
            self.last_nonfinite_step = step


def span_of(event: Step | Steps) -> tuple[int, int]:
    """Return the first and the last step of an event."""
    return (event.step, event.step) if isinstance(event, Step) else (event.first, event.last)


def merge_pairs(items: list[T], merge: Callable[[T, T], T]) -> list[T]:
    """Merge neighbours in pairs. If the number of items is odd, the last one stays as it is."""
    return [merge(*pair) for pair in zip(items[::2], items[1::2], strict=False)] + items[len(items) // 2 * 2 :]


def _merge(a: Point, b: Point) -> Point:
    n = a.n + b.n
    return Point(b.step, n, (a.mean * a.n + b.mean * b.n) / n, min(a.low, b.low), max(a.high, b.high))


class Fall(NamedTuple):
    """The change of a series from its first to its last tenth, and its noise."""

    early: float
    late: float
    noise: float
    """The standard error of the difference."""

    @property
    def beyond_noise(self) -> bool:
        return self.early - self.late > 3.0 * self.noise and self.early - self.late > 1e-3 * abs(self.early)


def fall(series: Series, *, least_points: int = 10) -> Fall | None:
    """Return the change of a series; None if it has too few points to distinguish a fall from noise."""
    points = series.points
    if len(points) < least_points:
        return None
    k = max(3, len(points) // 10)
    early, late = [p.mean for p in points[:k]], [p.mean for p in points[-k:]]
    return Fall(mean_of(early), mean_of(late), math.sqrt((_variance(early) + _variance(late)) / k))


def mean_of(values: list[float]) -> float:
    try:
        return math.fsum(values) / len(values)
    except OverflowError:  # the values are finite, but their sum is not
        return math.fsum(value / len(values) for value in values)


def _variance(values: list[float]) -> float:
    middle = mean_of(values)
    squares = [(v - middle) * (v - middle) for v in values]  # infinite, where ** would raise
    try:
        return math.fsum(squares) / (len(values) - 1)
    except OverflowError:
        return math.inf

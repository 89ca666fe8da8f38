"""Whether a series really grows, and when it will reach a limit.

The memory of a training increases for many reasons that stop on their own: caches fill, allocators settle, the garbage
collector has not run yet, a second model is loaded. Growth counts as real only if all of these conditions hold in one
window:

- the warm-up is excluded: the first third of the series never counts;
- the growth is well above the noise, and the last third of the window is above the first;
- it is spread over the window: no single jump makes up much of it;
- it continues: the last third has its share, and the second half grew about as much as the first.

Growth that started late is found in a shorter window at the end, but only if the series was lower and grew more slowly
before. So neither the tail of a growth that slows down nor one period of a sawtooth is mistaken for a leak.

Slopes are medians of the slopes between pairs of points (Theil-Sen), so single spikes do not affect them.

If epochs are known, the level of each epoch is one point (`growth_by_epoch`): variations within an epoch are the same in all
epochs, and a jump at the end of each epoch becomes a straight line. The limit is then reached first by something that repeats
(`Repeat`): the peaks of an epoch and each validation, all shifted by the growth.
"""

from __future__ import annotations

import math
from itertools import pairwise
from statistics import median
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Sequence

BINS = 48
"""A window is reduced to at most this many medians."""
MIN_POINTS = 9
MIN_SIGNAL_TO_NOISE = 8.0
"""The growth, as a multiple of its own noise."""
MAX_JUMP = 0.4
"""No two neighbours may differ by more than this fraction of the growth."""
MIN_LATE_SLOPE = 0.5
"""The slope of the last third, as a fraction of the overall slope."""
MIN_HALF_RATIO = 0.8
"""The slope of the second half, as a fraction of the slope of the first."""
STEADY = 0.98
"""At this ratio of the halves, the growth is not considered to slow down at all."""
MIN_EPOCHS = 4
"""The number of levels that are needed, including the first one, which never counts."""
MANY_EPOCHS = 9
"""With fewer epochs, only the first is excluded, so that uneven jumps average out, and a lower ratio of the halves suffices."""
MIN_HALF_RATIO_OF_FEW = 0.75
MIN_EPOCHS_OF_A_PART = 6
"""A window that excludes more than the warm-up needs more epochs."""
STEADY_TAIL = 0.93
"""Growth that became slower must continue evenly and be far enough above the noise to show it: decaying growth is not."""
MIN_TAIL_SIGNAL_TO_NOISE = 30.0
MIN_DOUBT = 0.06
"""The minimum uncertainty of a forecast, as a fraction of the remaining distance."""

XY = tuple[float, float]


class Growth(NamedTuple):
    """Real and continuing growth. The unit of `x` is up to the caller: steps or seconds."""

    since: float
    until: float
    """The window from which the growth was estimated."""
    rate: float
    """The growth per unit of x."""
    slowest: float
    fastest: float
    """Bounds of the true rate, estimated from the noise and the two halves."""
    level: float
    """The level at `until`, without noise."""
    noise: float
    slowing: float
    """The growth in the second half of the window, as a fraction of that in the first: 1 is steady."""
    tail: bool = False
    """Whether the growth was faster before the window."""

    @property
    def grown(self) -> float:
        return self.rate * (self.until - self.since)

    @property
    def settles_at(self) -> float:
        """The level at which the growth would stop if it continues to slow down at the same rate."""
        if self.slowing >= STEADY:
            return math.inf
        half = self.grown * self.slowing / (1.0 + self.slowing)
        return self.level + half * self.slowing / (1.0 - self.slowing)


class Repeat(NamedTuple):
    """A peak above the line of the growth that occurs regularly."""

    last: float
    """The x of the last occurrence."""
    every: float
    above: float
    """The usual height above the line."""
    most: float
    """The maximum recent height above the line."""


class Forecast(NamedTuple):
    """The x at which the limit is reached."""

    at: float
    earliest: float
    latest: float


def growth(points: Sequence[XY]) -> Growth | None:
    """Return the growth at the end of the series; None if there is no real and continuing growth."""
    points = _merge_equal_x(points)
    for part in (3, 6, 12):
        cut = len(points) // 3 if part == 3 else len(points) - 2 * len(points) // part
        window = points[cut:]
        if len(window) < MIN_POINTS:
            return None
        found = _growth_in(window)
        if found is None:
            continue
        if part == 3 or _is_new_growth(points, cut, found):
            return found
    return None


def growth_by_epoch(levels: Sequence[XY]) -> Growth | None:
    """Return the growth over the levels of epochs. The first is the warm-up; others are excluded only if there are many."""
    n = len(levels)
    if n < MIN_EPOCHS:
        return None
    if n < MANY_EPOCHS:
        return _growth_of_levels(levels[1:], MIN_HALF_RATIO_OF_FEW) or (
            _growth_of_levels(levels[n // 3 :]) if n >= MIN_EPOCHS_OF_A_PART else None
        )
    found = _growth_of_levels(levels[n // 3 :])
    for part in (3, 6):
        window = levels[-(n // part) :]
        if found is not None or len(window) < MIN_EPOCHS_OF_A_PART:
            return found
        found = _growth_of_levels(window)
        if found is not None:
            found = _confirm_late_growth(levels, n - len(window), found)
    return found


def forecast_crossing(growth: Growth, limit: float, repeats: Sequence[Repeat] = ()) -> Forecast | None:
    """Return when the growth, or a repeated peak above it, reaches the limit; None if it settles below the limit."""
    above = max((repeat.above for repeat in repeats), default=0.0)
    if growth.settles_at + above < limit:
        return None
    if growth.level >= limit:
        return Forecast(growth.until, growth.until, growth.until)
    noise = growth.noise + 0.5 * MIN_DOUBT * (limit - growth.level)
    usual = [(repeat.last, repeat.every, repeat.above) for repeat in repeats]
    most = [(repeat.last, repeat.every, repeat.most) for repeat in repeats]
    at = _find_first_crossing(growth, growth.rate, 0.0, limit, usual)
    earliest = _find_first_crossing(growth, growth.fastest, noise, limit, most)
    latest = _find_first_crossing(growth, growth.slowest, -noise, limit, usual)
    doubt = MIN_DOUBT * (at - growth.until)
    return Forecast(at, max(growth.until, min(earliest, at - doubt)), max(latest, at + doubt))


def _find_first_crossing(
    growth: Growth, rate: float, offset: float, limit: float, repeats: Sequence[tuple[float, float, float]]
) -> float:
    """Return the first x at which the line, or a repeated peak above it, reaches the limit."""
    level = growth.level + offset
    if not repeats:
        return growth.until + max(0.0, limit - level) / rate
    first = math.inf
    for last, every, above in repeats:
        crossing = growth.until + (limit - above - level) / rate
        times = max(math.ceil((crossing - last) / every), math.floor((growth.until - last) / every) + 1)
        first = min(first, last + times * every)
    return first


class _Line(NamedTuple):
    """A line through the bins of a window, fitted so that single spikes do not affect it."""

    bins: list[XY]
    slopes: list[float]
    """Those between all pairs of bins, sorted."""
    rate: float
    middle: float
    """The height of the line at x = 0."""
    offsets: list[float]
    """The distances of the bins from the line, sorted."""

    @property
    def grown(self) -> float:
        return self.rate * (self.bins[-1][0] - self.bins[0][0])

    def bound_rate(self, early: float, late: float) -> tuple[float, float]:
        """Return bounds of the true rate, estimated from the noise and the slopes of the two halves."""
        n = len(self.bins)
        doubt = round(0.98 * math.sqrt(n * (n - 1) * (2 * n + 5) / 18.0))
        centre, last = len(self.slopes) // 2, len(self.slopes) - 1
        slowest, fastest = self.slopes[max(0, centre - doubt)], self.slopes[min(last, centre + doubt)]
        return min(slowest, early, late), max(fastest, early, late)


def _fit_line(window: Sequence[XY]) -> _Line | None:
    """Fit a line; return None if it does not rise."""
    bins = _bin(window)
    slopes = sorted(_slopes(bins, 1))
    rate = median(slopes) if slopes else 0.0
    if rate <= 0.0:
        return None
    residuals = [y - rate * x for x, y in bins]
    middle = median(residuals)
    return _Line(bins, slopes, rate, middle, sorted(abs(offset - middle) for offset in residuals))


def _growth_of_levels(window: Sequence[XY], not_slowing: float = MIN_HALF_RATIO) -> Growth | None:
    line = _fit_line(window)
    if line is None:
        return None
    bins, rate, grown, n = line.bins, line.rate, line.grown, len(line.bins)
    # The median of few numbers may be near zero by chance, so use the largest of them.
    noise = 1.4826 * median(line.offsets) if n >= MIN_POINTS else line.offsets[-1]
    clear = MIN_SIGNAL_TO_NOISE if n >= MIN_POINTS else 0.5 * MIN_SIGNAL_TO_NOISE
    largest = max(b[1] - a[1] for a, b in pairwise(bins))
    if grown < clear * noise or largest > max(MAX_JUMP, 1.5 / (n - 1)) * grown:
        return None
    half = n // 2
    early, late = _far_slope(bins[: half + 1]), _far_slope(bins[-half - 1 :])
    still = _far_slope(bins[-max(2, n // 3) :])
    if early <= 0.0 or late <= 0.0 or still < MIN_LATE_SLOPE * rate:
        return None
    # The halves of few levels overlap: the slope decreases less between them than over half of the window.
    slowing = (late / early) ** (0.5 * (n - 1) / (n - 1 - half))
    if slowing < not_slowing:
        return None
    slowest, fastest = line.bound_rate(early, late)
    since, until = window[0][0], window[-1][0]
    level = line.middle + rate * until
    return Growth(since, until, rate, max(slowest, 0.5 * rate), min(fastest, 2.0 * rate), level, noise, slowing)


def _confirm_late_growth(levels: Sequence[XY], cut: int, found: Growth) -> Growth | None:
    """Return growth that began late if it reaches new maxima, or growth that became slower if it is even; otherwise None."""
    before = levels[:cut]
    just_before = before[-(len(levels) - cut) :]
    if len(just_before) < MIN_EPOCHS_OF_A_PART:
        return None
    if _far_slope(_bin(just_before)) <= found.rate:
        return found if found.level - max(y for _, y in before) >= 0.5 * found.grown else None
    even = found.slowing >= STEADY_TAIL and found.grown >= MIN_TAIL_SIGNAL_TO_NOISE * found.noise
    return found._replace(tail=True) if even else None


def _growth_in(window: Sequence[XY]) -> Growth | None:
    line = _fit_line(window)
    if line is None:
        return None
    bins, rate, n = line.bins, line.rate, len(line.bins)
    noise = 1.4826 * median(line.offsets)
    if line.grown < MIN_SIGNAL_TO_NOISE * noise or not _is_spread_out(bins, line.grown):
        return None
    early, late = _far_slope(bins[: n // 2 + 1]), _far_slope(bins[n // 2 :])
    if early <= 0.0 or late < MIN_HALF_RATIO * early or _far_slope(bins[-(n // 3) - 1 :]) < MIN_LATE_SLOPE * rate:
        return None
    slowest, fastest = line.bound_rate(early, late)
    if slowest <= 0.0:
        return None
    until = window[-1][0]
    return Growth(bins[0][0], until, rate, slowest, fastest, line.middle + rate * until, noise, late / early)


def _is_spread_out(bins: Sequence[XY], grown: float) -> bool:
    third = len(bins) // 3
    begin, end = sorted(y for _, y in bins[:third]), sorted(y for _, y in bins[-third:])
    if end[len(end) // 5] <= begin[-1 - len(begin) // 5]:
        return False
    return all(abs(b[1] - a[1]) <= MAX_JUMP * grown for a, b in pairwise(bins))


def _is_new_growth(points: Sequence[XY], cut: int, found: Growth) -> bool:
    """Return whether growth at the end is new: it was slower before, and it reaches new maxima, unlike a sawtooth."""
    just_before = _bin(points[max(0, 2 * cut - len(points)) : cut])
    if len(just_before) < MIN_POINTS or _far_slope(just_before) > found.rate:
        return False
    before = sorted(y for _, y in points[:cut])
    return found.level - before[-1 - len(before) // 20] >= 0.5 * found.grown


def _merge_equal_x(points: Sequence[XY]) -> list[XY]:
    """Merge the points with the same x. No step is done during an evaluation, so all its samples become one point."""
    groups: list[tuple[float, list[float]]] = []
    for x, y in points:
        if groups and x <= groups[-1][0]:
            groups[-1][1].append(y)
        else:
            groups.append((x, [y]))
    return [(x, median(values)) for x, values in groups]


def _bin(points: Sequence[XY]) -> list[XY]:
    bin_size = -(-len(points) // BINS)
    groups = [points[i : i + bin_size] for i in range(0, len(points), bin_size)]
    return [(sum(x for x, _ in group) / len(group), median(y for _, y in group)) for group in groups]


def _slopes(bins: Sequence[XY], apart: int) -> list[float]:
    """Return the slopes between all pairs of points that are at least `apart` places apart."""
    n = len(bins)
    return [(bins[j][1] - bins[i][1]) / (bins[j][0] - bins[i][0]) for i in range(n) for j in range(i + apart, n)]


def _far_slope(bins: Sequence[XY]) -> float:
    """Return the median slope between distant points. On a staircase, close points only see single steps."""
    return median(_slopes(bins, max(1, len(bins) // 2)))

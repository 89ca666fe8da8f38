"""Whether a series really grows, and when it will meet a limit.

A training's memory goes up for many reasons that end by themselves: caches fill, allocators find their size, a collector
has not run yet, a second model is loaded. A growth is called real here only where all of this holds in one window:

- the warm-up is left out: the first third of the series never counts;
- it stands clear of the noise, and the last third of the window lies above the first;
- it is spread over the window: no single jump makes up much of it;
- it still goes on: the last third has its share, and the second half grew about as much as the first.

Growth that only started late is found in a shorter window at the end, but only where the time before it grew less and was
lower: so neither the tail of a growth that slows down nor one tooth of a saw is taken for a leak.

Slopes are medians of the slopes between pairs of points (Theil and Sen): a spike or two do not bend them.
"""

from __future__ import annotations

import math
from itertools import pairwise
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Sequence

BINS = 48
"""A window is looked at as so many medians at most."""
LEAST_POINTS = 9
CLEAR_OF_NOISE = 8.0
"""What it grew, in units of its own noise."""
LARGEST_JUMP = 0.4
"""No two neighbours may differ by more than this part of the growth."""
STILL_GROWING = 0.5
"""What the last third must have, against the slope of all."""
NOT_SLOWING = 0.8
"""What the second half must have, against the first."""
STEADY = 0.9
"""From here on it is not called slowing down at all."""
LEAST_DOUBT = 0.03
"""No forecast is better than this part of the way that is left."""

XY = tuple[float, float]


class Growth(NamedTuple):
    """A growth that is real and goes on. `x` is what the caller counts by: steps or seconds."""

    since: float
    until: float
    """The window that was looked at."""
    rate: float
    """For each unit of x."""
    slowest: float
    fastest: float
    """Between these the true rate lies, as far as the noise and the two halves tell."""
    level: float
    """Where it stands at `until`, noise left out."""
    noise: float
    slowing: float
    """What the second half of the window grew, against the first: 1 is steady."""

    @property
    def grown(self) -> float:
        return self.rate * (self.until - self.since)

    @property
    def settles_at(self) -> float:
        """Where it would come to rest if it goes on slowing down as it does."""
        if self.slowing >= STEADY:
            return math.inf
        half = self.grown * self.slowing / (1.0 + self.slowing)
        return self.level + half * self.slowing / (1.0 - self.slowing)


class Forecast(NamedTuple):
    """Where on x the limit is met."""

    at: float
    earliest: float
    latest: float


def growth(points: Sequence[XY]) -> Growth | None:
    """The growth that the series ends with, or None where there is none that is real and goes on."""
    points = _one_for_each_x(points)
    for part in (3, 6, 12):
        cut = len(points) // 3 if part == 3 else len(points) - 2 * len(points) // part
        window = points[cut:]
        if len(window) < LEAST_POINTS:
            return None
        found = _growth_in(window)
        if found is None:
            continue
        if part == 3 or _is_news(points, cut, found):
            return found
    return None


def meets(growth: Growth, limit: float) -> Forecast | None:
    """When a growth meets the limit; None where it settles below it."""
    if growth.settles_at < limit:
        return None
    left = limit - growth.level
    if left <= 0.0:
        return Forecast(growth.until, growth.until, growth.until)
    way = left / growth.rate
    least_doubt = LEAST_DOUBT * way
    earliest = min(max(0.0, left - growth.noise) / growth.fastest, way - least_doubt)
    latest = max((left + growth.noise) / growth.slowest, way + least_doubt)
    return Forecast(growth.until + way, growth.until + earliest, growth.until + latest)


def _growth_in(window: Sequence[XY]) -> Growth | None:
    bins = _binned(window)
    all_slopes = sorted(_slopes(bins, 1))
    if not all_slopes:
        return None
    rate = _median(all_slopes)
    first, last = bins[0][0], bins[-1][0]
    if rate <= 0.0:
        return None
    grown = rate * (last - first)
    offsets = [y - rate * x for x, y in bins]
    middle = _median(sorted(offsets))
    noise = 1.4826 * _median(sorted(abs(offset - middle) for offset in offsets))
    if grown < CLEAR_OF_NOISE * noise or not _is_spread_out(bins, grown):
        return None
    n = len(bins)
    early, late = _far_slope(bins[: n // 2 + 1]), _far_slope(bins[n // 2 :])
    if early <= 0.0 or late < NOT_SLOWING * early or _far_slope(bins[-(n // 3) - 1 :]) < STILL_GROWING * rate:
        return None
    doubt = round(0.98 * math.sqrt(n * (n - 1) * (2 * n + 5) / 18.0))
    centre = len(all_slopes) // 2
    slowest, fastest = all_slopes[max(0, centre - doubt)], all_slopes[min(len(all_slopes) - 1, centre + doubt)]
    slowest = min(slowest, early, late)
    if slowest <= 0.0:
        return None
    return Growth(
        since=first,
        until=window[-1][0],
        rate=rate,
        slowest=slowest,
        fastest=max(fastest, early, late),
        level=middle + rate * window[-1][0],
        noise=noise,
        slowing=late / early,
    )


def _is_spread_out(bins: Sequence[XY], grown: float) -> bool:
    third = len(bins) // 3
    begin, end = sorted(y for _, y in bins[:third]), sorted(y for _, y in bins[-third:])
    if end[len(end) // 5] <= begin[-1 - len(begin) // 5]:
        return False
    return all(abs(b[1] - a[1]) <= LARGEST_JUMP * grown for a, b in pairwise(bins))


def _is_news(points: Sequence[XY], cut: int, found: Growth) -> bool:
    """A short window at the end counts where the time before grew less, and where it leads to new heights: one tooth of
    a saw does not.
    """
    just_before = _binned(points[max(0, 2 * cut - len(points)) : cut])
    if len(just_before) < LEAST_POINTS or _far_slope(just_before) > found.rate:
        return False
    before = sorted(y for _, y in points[:cut])
    return found.level - before[-1 - len(before) // 20] >= 0.5 * found.grown


def _one_for_each_x(points: Sequence[XY]) -> list[XY]:
    """While it evaluates no step is done: what was measured meanwhile is one point."""
    groups: list[tuple[float, list[float]]] = []
    for x, y in points:
        if groups and x <= groups[-1][0]:
            groups[-1][1].append(y)
        else:
            groups.append((x, [y]))
    return [(x, _median(sorted(values))) for x, values in groups]


def _binned(points: Sequence[XY]) -> list[XY]:
    each = -(-len(points) // BINS)
    groups = [points[i : i + each] for i in range(0, len(points), each)]
    return [(sum(x for x, _ in group) / len(group), _median(sorted(y for _, y in group))) for group in groups]


def _slopes(bins: Sequence[XY], apart: int) -> list[float]:
    """Between all pairs that are so many places apart, or more."""
    n = len(bins)
    return [(bins[j][1] - bins[i][1]) / (bins[j][0] - bins[i][0]) for i in range(n) for j in range(i + apart, n)]


def _far_slope(bins: Sequence[XY]) -> float:
    """Near pairs see the treads of a staircase, far ones its slope."""
    return _median(sorted(_slopes(bins, max(1, len(bins) // 2))))


def _median(ordered: Sequence[float]) -> float:
    n = len(ordered)
    return ordered[n // 2] if n % 2 else (ordered[n // 2 - 1] + ordered[n // 2]) / 2.0

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

Where epochs are known the level of each is one point (`growth_by_epoch`): what goes up and down within an epoch is the same in
all of them, and a jump at the end of each is a straight line. The limit is then met by what comes again (`Repeat`): the highest
places of an epoch and each validation, all carried along by the growth.
"""

from __future__ import annotations

import math
from itertools import pairwise
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Sequence

BINS = 48
"""A window is looked at as so many medians at most."""
MIN_POINTS = 9
CLEAR_OF_NOISE = 8.0
"""What it grew, in units of its own noise."""
MAX_JUMP = 0.4
"""No two neighbours may differ by more than this part of the growth."""
STILL_GROWING = 0.5
"""What the last third must have, against the slope of all."""
NOT_SLOWING = 0.8
"""What the second half must have, against the first."""
STEADY = 0.98
"""From here on it is not called slowing down at all."""
MIN_EPOCHS = 4
"""So many levels are needed; the first of them never counts."""
FEW_EPOCHS = 9
"""Of fewer only the first is left out, so that uneven jumps even out; and what is lost by them is no slowing down."""
NOT_SLOWING_OF_FEW = 0.75
MIN_EPOCHS_OF_A_PART = 6
"""A window that leaves out more than the warm-up needs more."""
STEADY_TAIL = 0.93
"""What goes on slower than before must go on evenly, and stand clear enough of the noise to tell: growth that dies away does not."""
TAIL_CLEAR_OF_NOISE = 30.0
MIN_DOUBT = 0.06
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
    tail: bool = False
    """It grew faster before the window."""

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


class Repeat(NamedTuple):
    """Something that comes again and again, and then stands above the line of the growth."""

    last: float
    """Where on x it came last."""
    every: float
    above: float
    """How far, as a rule."""
    most: float
    """How far at most, of late."""


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
        if len(window) < MIN_POINTS:
            return None
        found = _growth_in(window)
        if found is None:
            continue
        if part == 3 or _is_news(points, cut, found):
            return found
    return None


def growth_by_epoch(levels: Sequence[XY]) -> Growth | None:
    """The same of the levels of epochs, of which there are few: the first is the warm-up, and no two are left out lightly."""
    n = len(levels)
    if n < MIN_EPOCHS:
        return None
    if n < FEW_EPOCHS:
        return _growth_of_levels(levels[1:], NOT_SLOWING_OF_FEW) or (
            _growth_of_levels(levels[n // 3 :]) if n >= MIN_EPOCHS_OF_A_PART else None
        )
    found = _growth_of_levels(levels[n // 3 :])
    for part in (3, 6):
        window = levels[-(n // part) :]
        if found is not None or len(window) < MIN_EPOCHS_OF_A_PART:
            return found
        found = _growth_of_levels(window)
        if found is not None:
            found = _after_the_rest(levels, n - len(window), found)
    return found


def meets(growth: Growth, limit: float, repeats: Sequence[Repeat] = ()) -> Forecast | None:
    """When a growth meets the limit, by itself or by what comes again above it; None where it settles below it."""
    above = max((repeat.above for repeat in repeats), default=0.0)
    if growth.settles_at + above < limit:
        return None
    if growth.level >= limit:
        return Forecast(growth.until, growth.until, growth.until)
    noise = growth.noise + 0.5 * MIN_DOUBT * (limit - growth.level)
    usual = [(repeat.last, repeat.every, repeat.above) for repeat in repeats]
    most = [(repeat.last, repeat.every, repeat.most) for repeat in repeats]
    at = _first_at(growth, growth.rate, 0.0, limit, usual)
    earliest = _first_at(growth, growth.fastest, noise, limit, most)
    latest = _first_at(growth, growth.slowest, -noise, limit, usual)
    doubt = MIN_DOUBT * (at - growth.until)
    return Forecast(at, max(growth.until, min(earliest, at - doubt)), max(latest, at + doubt))


def _first_at(
    growth: Growth, rate: float, more: float, limit: float, repeats: Sequence[tuple[float, float, float]]
) -> float:
    """The first x at which the line, or a repeat above it, is at the limit."""
    level = growth.level + more
    if not repeats:
        return growth.until + max(0.0, limit - level) / rate
    first = math.inf
    for last, every, above in repeats:
        crossing = growth.until + (limit - above - level) / rate
        times = max(math.ceil((crossing - last) / every), math.floor((growth.until - last) / every) + 1)
        first = min(first, last + times * every)
    return first


def _growth_of_levels(window: Sequence[XY], not_slowing: float = NOT_SLOWING) -> Growth | None:
    bins = _binned(window)
    n = len(bins)
    slopes = sorted(_slopes(bins, 1))
    rate = _median(slopes)
    if rate <= 0.0:
        return None
    grown = rate * (bins[-1][0] - bins[0][0])
    offsets = [y - rate * x for x, y in bins]
    middle = _median(sorted(offsets))
    off = sorted(abs(offset - middle) for offset in offsets)
    # The median of few numbers is near zero by chance: then the largest of them counts.
    noise = 1.4826 * _median(off) if n >= MIN_POINTS else off[-1]
    clear = CLEAR_OF_NOISE if n >= MIN_POINTS else 0.5 * CLEAR_OF_NOISE
    largest = max(b[1] - a[1] for a, b in pairwise(bins))
    if grown < clear * noise or largest > max(MAX_JUMP, 1.5 / (n - 1)) * grown:
        return None
    half = n // 2
    early, late = _far_slope(bins[: half + 1]), _far_slope(bins[-half - 1 :])
    still = _far_slope(bins[-max(2, n // 3) :])
    if early <= 0.0 or late <= 0.0 or still < STILL_GROWING * rate:
        return None
    # Halves of few levels overlap: what is lost from one to the other is less than what is lost in half the window.
    slowing = (late / early) ** (0.5 * (n - 1) / (n - 1 - half))
    if slowing < not_slowing:
        return None
    doubt = round(0.98 * math.sqrt(n * (n - 1) * (2 * n + 5) / 18.0))
    centre = len(slopes) // 2
    slowest = min(slopes[max(0, centre - doubt)], early, late)
    fastest = max(slopes[min(len(slopes) - 1, centre + doubt)], early, late)
    until = window[-1][0]
    return Growth(
        since=window[0][0],
        until=until,
        rate=rate,
        slowest=max(slowest, 0.5 * rate),
        fastest=min(fastest, 2.0 * rate),
        level=middle + rate * until,
        noise=noise,
        slowing=slowing,
    )


def _after_the_rest(levels: Sequence[XY], cut: int, found: Growth) -> Growth | None:
    """Growth that began late leads to new heights; growth that goes on slower than before is even."""
    before = levels[:cut]
    just_before = before[-(len(levels) - cut) :]
    if len(just_before) < MIN_EPOCHS_OF_A_PART:
        return None
    if _far_slope(_binned(just_before)) <= found.rate:
        return found if found.level - max(y for _, y in before) >= 0.5 * found.grown else None
    even = found.slowing >= STEADY_TAIL and found.grown >= TAIL_CLEAR_OF_NOISE * found.noise
    return found._replace(tail=True) if even else None


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
    return all(abs(b[1] - a[1]) <= MAX_JUMP * grown for a, b in pairwise(bins))


def _is_news(points: Sequence[XY], cut: int, found: Growth) -> bool:
    """A short window at the end counts where the time before grew less, and where it leads to new heights: one tooth of
    a saw does not.
    """
    just_before = _binned(points[max(0, 2 * cut - len(points)) : cut])
    if len(just_before) < MIN_POINTS or _far_slope(just_before) > found.rate:
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

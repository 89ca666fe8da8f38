"""What the report draws: the run's curves as values, thinned to what can be seen, with the findings beside them.

Pure: from a run state to frozen charts. How they look is decided in plots.py.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import pairwise
from statistics import median
from typing import TYPE_CHECKING, Literal, NamedTuple

from holdfast.render.report.text import clean, count, number
from holdfast.render.text import duration

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from holdfast.diagnosis.run_state import AttemptState
    from holdfast.diagnosis.series import Series

MAX_POINTS = 600
"""In one chart, over all its lines: more than a phone has pixels across."""
MIN_POINTS = 6
"""That a stroke keeps, however many there are."""
MAX_LINES = 6
SEVERE = {"fatal": 0, "warn": 1, "note": 2}

Unit = Literal["", "seconds", "bytes"]
Across = Literal["step", "epoch", "time"]


class Dot(NamedTuple):
    """One place on a line; `low` and `high` are the extremes of the values that it stands for."""

    x: float
    mean: float
    low: float
    high: float
    n: int = 1


@dataclass(frozen=True)
class Line:
    name: str
    strokes: tuple[tuple[Dot, ...], ...]
    """One for each attempt, or for each part of it: nothing was measured between two."""
    is_other: bool = False
    """Of the run that this one is compared with."""

    @property
    def dots(self) -> list[Dot]:
        return [dot for stroke in self.strokes for dot in stroke]


@dataclass(frozen=True)
class Mark:
    """A finding, at its step."""

    x: float
    number: int
    severity: str
    text: str


@dataclass(frozen=True)
class Chart:
    name: str
    title: str
    caption: str
    lines: tuple[Line, ...]
    across: Across = "step"
    unit: Unit = ""
    marks: tuple[Mark, ...] = ()
    restarts: tuple[float, ...] = ()
    """Where further attempts began."""
    nonfinite: tuple[tuple[float, float], ...] = ()
    """Where values were not finite."""
    log: bool = False
    extent: tuple[float, float] | None = None
    """The steps of the whole run, so that all charts stand under each other."""


def line_of(name: str, series: Iterable[Series], most: int = MAX_POINTS, *, is_other: bool = False) -> Line:
    """One stroke for each series that has values, thinned together to at most so many points or the fewest of each."""
    full = [[Dot(p.step, p.mean, p.low, p.high, p.n) for p in each.points if math.isfinite(p.mean)] for each in series]
    full = [stroke for stroke in full if stroke]
    total = sum(len(stroke) for stroke in full)
    strokes = (thinned(stroke, max(MIN_POINTS, most * len(stroke) // total)) for stroke in full)
    return Line(clean(name, 60), tuple(tuple(stroke) for stroke in strokes), is_other)


def thinned(dots: list[Dot], most: int) -> list[Dot]:
    """Neighbours joined, so that no peak is lost: it stays in `low` or `high`."""
    each = math.ceil(len(dots) / most)
    return [joined(dots[i : i + each]) for i in range(0, len(dots), each)] if each > 1 else dots


def joined(dots: list[Dot]) -> Dot:
    n = sum(dot.n for dot in dots)
    mean = math.fsum(dot.mean * (dot.n / n) for dot in dots)
    return Dot(dots[-1].x, mean, min(dot.low for dot in dots), max(dot.high for dot in dots), n)


FAR_APART = 10
"""Times the usual distance between two points: nobody may take what is drawn between them for measured."""


def unbroken(stroke: tuple[Dot, ...]) -> list[tuple[Dot, ...]]:
    """A stroke in pieces, where points are far apart. A point of many values reaches back over as many steps."""
    if len(stroke) < 3:
        return [stroke]
    usual = median(after.x - before.x for before, after in pairwise(stroke))
    breaks = [
        n for n, (before, after) in enumerate(pairwise(stroke), 1) if after.x - after.n - before.x > FAR_APART * usual
    ]
    return [stroke[begin:end] for begin, end in pairwise([0, *breaks, len(stroke)])]


def spans_decades(lines: Iterable[Line]) -> bool:
    """Whether only a logarithmic scale shows more than the highest peak."""
    means = [dot.mean for line in lines for dot in line.dots]
    return bool(means) and min(means) > 0 and max(means) / min(means) > 50


def not_finite(attempts: list[AttemptState], of: Callable[[AttemptState], Series]) -> tuple[tuple[float, float], ...]:
    spans = []
    for attempt in attempts:
        series = of(attempt)
        if series.first_nonfinite_step is not None:
            last = attempt.last_step if series.nonfinite_in_a_row else series.first_nonfinite_step
            spans.append((float(series.first_nonfinite_step), float(max(last, series.first_nonfinite_step))))
    return tuple(spans)


def direction(line: Line, nonfinite: tuple[tuple[float, float], ...]) -> str:
    """In words what the curve shows, for those who cannot see it."""
    since = f"Not finite from step {count(nonfinite[0][0])} on." if nonfinite else ""
    if not line.strokes:
        return f"{since} No value was finite."
    dots = line.dots
    lowest = min(dots, key=lambda dot: dot.low)
    said = from_to(line).capitalize()
    if lowest is not dots[-1] and lowest.low < dots[-1].mean:
        said += f"; lowest {number(lowest.low)} near step {count(lowest.x)}"
    return f"{said}. {since}".strip()


def from_to(line: Line) -> str:
    dots = line.dots
    first, last = dots[0].mean, dots[-1].mean
    if len(dots) == 1:
        return number(first)
    if extremes(line) == (first, first):
        return f"{number(first)} throughout"
    return f"from {number(first)} to {number(last)}"


def extremes(line: Line) -> tuple[float, float]:
    return min(dot.low for dot in line.dots), max(dot.high for dot in line.dots)


def and_more(left: int) -> str:
    return f"; and {left} more" if left > 0 else ""


def step_time(seconds: float) -> str:
    return f"{seconds * 1000:.3g} ms" if seconds < 1 else f"{seconds:.3g} s" if seconds < 60 else duration(seconds)


def connected(strokes: list[list[Dot]], most: int) -> tuple[tuple[Dot, ...], ...]:
    """What comes once an epoch: an attempt that went on where the last one ended goes on with its stroke too."""
    whole: list[list[Dot]] = []
    for stroke in strokes:
        if whole and stroke and stroke[0].x > whole[-1][-1].x:
            whole[-1] = whole[-1] + stroke
        elif stroke:
            whole.append(stroke)
    return tuple(tuple(thinned(stroke, max(MIN_POINTS, most // len(whole)))) for stroke in whole)

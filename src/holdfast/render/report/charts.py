"""The curves of a report as values, thinned to what is visible, with the findings.

Pure: from a run state to frozen charts. svg.py draws them.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import pairwise
from statistics import median
from typing import TYPE_CHECKING, Literal, NamedTuple

from holdfast.render.report.text import clean, count, number
from holdfast.schema.units import duration

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from holdfast.diagnosis.run_state import AttemptState
    from holdfast.diagnosis.series import Series

MAX_POINTS = 600
"""Per chart, for all its lines together: more than the width of a phone in pixels."""
MIN_POINTS = 6
"""Per stroke, however many strokes there are."""
MAX_LINES = 6
SEVERE = {"fatal": 0, "warn": 1, "note": 2}

Unit = Literal["", "seconds", "bytes"]
Across = Literal["step", "epoch", "time"]


class Dot(NamedTuple):
    """A point on a line. `low` and `high` are the extremes of the values that it represents."""

    x: float
    mean: float
    low: float
    high: float
    n: int = 1


@dataclass(frozen=True)
class Line:
    name: str
    strokes: tuple[tuple[Dot, ...], ...]
    """One per attempt, or per uninterrupted part of it. Nothing was measured between two strokes."""
    is_other: bool = False
    """True for the run that this one is compared with."""

    @property
    def dots(self) -> list[Dot]:
        return [dot for stroke in self.strokes for dot in stroke]


@dataclass(frozen=True)
class Mark:
    """A finding at its step."""

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
    """First steps of the attempts after the first."""
    nonfinite: tuple[tuple[float, float], ...] = ()
    """Ranges with non-finite values."""
    log: bool = False
    extent: tuple[float, float] | None = None
    """The steps of the whole run, so that all charts have the same x axis."""


def line_of(name: str, series: Iterable[Series], max_points: int = MAX_POINTS, *, is_other: bool = False) -> Line:
    """Return one stroke per non-empty series, thinned to about `max_points` in total, but at least MIN_POINTS each."""
    full = [[Dot(p.step, p.mean, p.low, p.high, p.n) for p in each.points if math.isfinite(p.mean)] for each in series]
    full = [stroke for stroke in full if stroke]
    total = sum(len(stroke) for stroke in full)
    strokes = (thin(stroke, max(MIN_POINTS, max_points * len(stroke) // total)) for stroke in full)
    return Line(clean(name, 60), tuple(tuple(stroke) for stroke in strokes), is_other)


def thin(dots: list[Dot], max_points: int) -> list[Dot]:
    """Merge neighbours. No peak is lost: it stays in `low` or `high`."""
    each = math.ceil(len(dots) / max_points)
    return [merge(dots[i : i + each]) for i in range(0, len(dots), each)] if each > 1 else dots


def merge(dots: list[Dot]) -> Dot:
    n = sum(dot.n for dot in dots)
    mean = math.fsum(dot.mean * (dot.n / n) for dot in dots)
    return Dot(dots[-1].x, mean, min(dot.low for dot in dots), max(dot.high for dot in dots), n)


FAR_APART = 10
"""Multiple of the usual distance between two points beyond which no line connects them: nothing was measured there."""


def split_at_gaps(stroke: tuple[Dot, ...]) -> list[tuple[Dot, ...]]:
    """Split a stroke between points that are far apart. A point of n values covers n steps."""
    if len(stroke) < 3:
        return [stroke]
    usual = median(after.x - before.x for before, after in pairwise(stroke))
    breaks = [
        n for n, (before, after) in enumerate(pairwise(stroke), 1) if after.x - after.n - before.x > FAR_APART * usual
    ]
    return [stroke[begin:end] for begin, end in pairwise([0, *breaks, len(stroke)])]


def spans_decades(lines: Iterable[Line]) -> bool:
    """Return True if a linear scale would show only the highest peak."""
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
    """Describe the curve in words, for screen readers and for Markdown."""
    nonfinite_text = f"Not finite from step {count(nonfinite[0][0])} on." if nonfinite else ""
    if not line.strokes:
        return f"{nonfinite_text} No value was finite."
    dots = line.dots
    lowest = min(dots, key=lambda dot: dot.low)
    text = from_to(line).capitalize()
    if lowest is not dots[-1] and lowest.low < dots[-1].mean:
        text += f"; lowest {number(lowest.low)} near step {count(lowest.x)}"
    return f"{text}. {nonfinite_text}".strip()


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


def connect(strokes: list[list[Dot]], max_points: int) -> tuple[tuple[Dot, ...], ...]:
    """Join the strokes of attempts that resumed where the one before ended, for values recorded once per epoch."""
    joined: list[list[Dot]] = []
    for stroke in strokes:
        if joined and stroke and stroke[0].x > joined[-1][-1].x:
            joined[-1] = joined[-1] + stroke
        elif stroke:
            joined.append(stroke)
    return tuple(tuple(thin(stroke, max(MIN_POINTS, max_points // len(joined)))) for stroke in joined)

"""Charts drawn as inline SVG.

matplotlib is not used, because the supervisor writes a report at the end of every run: matplotlib takes a second and
60 MB to import, fixes its colours when it draws (a page has a light and a dark theme), and scales its text with the image
(unreadable on a phone). The SVG contains only curves. They stretch to the width of the page with a constant stroke width, in the
colours of the page. All text is HTML, so it keeps its size, and no untrusted name gets into the SVG.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

from holdfast.diagnosis.series import mean_of
from holdfast.render.report.charts import SEVERE
from holdfast.render.report.text import number, short_count
from holdfast.schema.units import GIB, MIB

if TYPE_CHECKING:
    from collections.abc import Iterator

    from holdfast.render.report.charts import Chart, Dot, Line, Mark

SIDE = 1000
"""Width and height in the SVG's own units; integers are finer than the pixels of most screens."""
FEW_DOTS = 40
"""A line with at most this many points shows each of them. Isolated points are always shown."""
MARK_ROOM = 5.0
"""Width of a finding's badge on a phone, in percent."""
MAX_ROWS = 4
MAX_RESTARTS = 12
TINY, HUGE = 1e-250, 1e250
"""Beyond these, the arithmetic of a scale overflows."""


@dataclass(frozen=True)
class Tick:
    at: float
    """Percent of the width from the left, or of the height from the top."""
    text: str


@dataclass(frozen=True)
class Badge:
    """A finding's number at its step. `row` keeps neighbours apart."""

    at: float
    row: int
    mark: Mark


@dataclass(frozen=True)
class Plot:
    chart: Chart
    svg: str
    across: tuple[Tick, ...]
    up: tuple[Tick, ...]
    badges: tuple[Badge, ...]
    rows: int


class Scale:
    """Maps values to positions from 0 to 1."""

    def __init__(self, low: float, high: float, *, log: bool = False) -> None:
        self.low, self.high, self.log = low, high, log
        self._from, self._to = (math.log10(low), math.log10(high)) if log else (low, high)

    def __call__(self, value: float) -> float:
        if self.log:
            value = math.log10(max(value, self.low / 10))
        return min(1.5, max(-0.5, (value - self._from) / (self._to - self._from)))


def draw(chart: Chart) -> Plot:
    across, up = _across(chart), _up(chart)
    lines = "".join(_line(line, n, across, up, banded=_has_band(chart)) for n, line in enumerate(chart.lines))
    rising = _value_ticks(up, chart.unit)
    badges = tuple(_badges(chart, across))
    svg = (
        f'<svg viewBox="0 0 {SIDE} {SIDE}" preserveAspectRatio="none" aria-hidden="true">'
        f"{_grid(rising)}{_nonfinite(chart, across)}{_vertical_lines(chart, across)}{lines}</svg>"
    )
    rows = max((badge.row + 1 for badge in badges), default=0)
    return Plot(chart, svg, _step_ticks(across, chart), rising, badges, rows)


# --- scales -----------------------------------------------------------------------------------------------------------


def _across(chart: Chart) -> Scale:
    values = [dot.x for line in chart.lines for dot in line.dots]
    values += [x for span in chart.nonfinite for x in span] + [mark.x for mark in chart.marks]
    values += chart.extent or ()
    low, high = min(values, default=0.0), max(values, default=1.0)
    room = (high - low) / 80 or 0.5  # keeps the first and last point away from the frame
    return Scale(low - room, high + room)


def _up(chart: Chart) -> Scale:
    dots = [dot for line in chart.lines for dot in line.dots]
    if not dots:
        return Scale(0.0, 1.0)
    low, high = min(dot.mean for dot in dots), max(dot.mean for dot in dots)
    if _has_band(chart):
        # Ignore the most extreme 5% of the band: a few spikes must not flatten everything else.
        low = min(low, sorted(dot.low for dot in dots)[len(dots) // 20])
        high = max(high, sorted(dot.high for dot in dots)[-1 - len(dots) // 20])
    if chart.log:
        return Scale(max(low, TINY) / 1.15, min(high, HUGE) * 1.15, log=True)
    low, high = max(low, -HUGE), min(high, HUGE)
    if high > 0 and (chart.unit or 0 < low < (high - low) * 0.5):
        low = 0.0  # time, memory and curves that come near zero start at zero
    if high - low <= max(TINY, abs(high) * 1e-12):
        # Show zero with a constant.
        return Scale(min(0.0, low * 1.25), max(0.0, low * 1.25)) if abs(low) > TINY else Scale(-0.05, 1.0)
    room = (high - low) * 0.06
    return Scale(low if low == 0.0 else low - room, high + room)


def _round_step(span: float, max_ticks: int) -> float:
    """Return the smallest 1, 2 or 5 times a power of ten that divides the span into at most `max_ticks` parts."""
    size = 10.0 ** math.floor(math.log10(span / max_ticks))
    return next(step * size for step in (1, 2, 5, 10) if span / (step * size) <= max_ticks * 1.0001)


def _even_ticks(low: float, high: float, max_ticks: int, *, min_step: float = 0.0) -> list[float]:
    step = max(_round_step(high - low, max_ticks), min_step)
    first = math.ceil(low / step - 1e-9)
    return [n * step for n in range(first, math.floor(high / step + 1e-9) + 1)]


def _step_ticks(scale: Scale, chart: Chart) -> tuple[Tick, ...]:
    if chart.across == "time":
        return _time_ticks(scale)
    values = _even_ticks(scale.low, scale.high, 6, min_step=1.0)
    return tuple(Tick(round(100 * scale(value), 2), short_count(value)) for value in values)


def _time_ticks(scale: Scale) -> tuple[Tick, ...]:
    span = scale.high - scale.low
    unit, each = next(((name, each) for name, each in (("h", 3600.0), ("min", 60.0)) if span >= 2 * each), ("s", 1.0))
    values = _even_ticks(scale.low / each, scale.high / each, 6)
    return tuple(Tick(round(100 * scale(value * each), 2), f"{value:g} {unit}") for value in values)


SIZES = {"bytes": (GIB, MIB), "seconds": (3600.0, 60.0)}
"""Sizes of units: ticks are whole multiples of them."""


def _value_ticks(scale: Scale, unit: str) -> tuple[Tick, ...]:
    if not scale.log:
        each = next((size for size in SIZES.get(unit, ()) if scale.high >= 2 * size), 1.0)
        values = [value * each for value in _even_ticks(scale.low / each, scale.high / each, 5)]
    else:
        low, high = math.log10(scale.low), math.log10(scale.high)
        if high - low < 2.2:
            values = [n * 10.0**e for e in range(math.floor(low), math.ceil(high) + 1) for n in (1, 2, 5)]
            values = [value for value in values if scale.low <= value <= scale.high]
            values = values if len(values) <= 5 else values[:: math.ceil(len(values) / 5)]
        else:
            values = [10.0**e for e in _even_ticks(low, high, 5, min_step=1.0)]
    digits = 4
    if not scale.log and len(values) > 1:
        # Neighbouring ticks must have different labels: 1.00001 and 1.00002.
        digits += max(0, round(math.log10(max(abs(values[0]), abs(values[-1])) / (values[1] - values[0]))) - 2)
    return tuple(Tick(round(100 * (1 - scale(value)), 2), _value(value, unit, digits)) for value in values)


def _value(value: float, unit: str, digits: int) -> str:
    if abs(value) < 1e-12:
        return "0" if abs(value) < TINY or unit else number(value, digits)
    if unit == "bytes":
        return f"{value / GIB:g} GiB" if value >= GIB else f"{value / MIB:g} MiB"
    if unit == "seconds":
        if value >= 60:
            return f"{value / 3600:.3g} h" if value >= 7200 else f"{value / 60:.3g} min"
        return f"{value * 1000:g} ms" if value < 1 else f"{value:g} s"
    return number(value, digits)


# --- drawing ----------------------------------------------------------------------------------------------------


def _has_band(chart: Chart) -> bool:
    """Return True for a single line: the bands of several lines would hide each other."""
    return len(chart.lines) == 1


def _line(line: Line, index: int, across: Scale, up: Scale, *, banded: bool) -> str:
    colour = "other" if line.is_other else f"c{index}"
    band = _band(line, across, up) if banded else ""
    path = "".join(_path(stroke, across, up) for stroke in line.strokes)
    drawn = f'<path class="band {colour}" d="{band}"/>' if band else ""
    drawn += f'<path class="line {colour}" d="{path}"/>'
    shown = line.dots if len(line.dots) <= FEW_DOTS else [stroke[0] for stroke in line.strokes if len(stroke) == 1]
    if shown:
        dots = "".join(f"M{_point(dot.x, dot.mean, across, up)}h0" for dot in shown)
        drawn += f'<path class="dots {colour}" d="{dots}"/>'
    return drawn


def _path(stroke: tuple[Dot, ...], across: Scale, up: Scale) -> str:
    places = [_point(dot.x, dot.mean, across, up) for dot in stroke]
    return f"M{places[0]}h0" if len(places) == 1 else "M" + "L".join(places)


def _band(line: Line, across: Scale, up: Scale) -> str:
    """Return the area between the lowest and highest value of each point."""
    drawn = ""
    for stroke in line.strokes:
        if len(stroke) > 1 and any(dot.high > dot.low for dot in stroke):
            above = [_point(dot.x, dot.high, across, up) for dot in stroke]
            below = [_point(dot.x, dot.low, across, up) for dot in reversed(stroke)]
            drawn += "M" + "L".join(above + below) + "Z"
    return drawn


def _point(x: float, y: float, across: Scale, up: Scale) -> str:
    return f"{round(SIDE * across(x))} {round(SIDE * (1 - up(y)))}"


def _grid(ticks: tuple[Tick, ...]) -> str:
    return '<path class="grid" d="' + "".join(f"M0 {round(tick.at * SIDE / 100)}H{SIDE}" for tick in ticks) + '"/>'


def _nonfinite(chart: Chart, across: Scale) -> str:
    drawn = ""
    for first, last in chart.nonfinite:
        left = round(SIDE * across(first))
        drawn += f'<rect class="nonfinite" x="{left}" y="0" width="{max(3, round(SIDE * across(last)) - left)}" height="{SIDE}"/>'
    return drawn


def _vertical_lines(chart: Chart, across: Scale) -> str:
    steps = chart.restarts if len(chart.restarts) <= MAX_RESTARTS else ()  # more would hide the curve
    restarts = "".join(f"M{round(SIDE * across(step))} 0V{SIDE}" for step in steps)
    drawn = f'<path class="restart" d="{restarts}"/>' if restarts else ""
    for mark in chart.marks:
        severity = mark.severity if mark.severity in SEVERE else "note"
        drawn += f'<path class="mark {severity}" d="M{round(SIDE * across(mark.x))} 0V{SIDE}"/>'
    return drawn


def _badges(chart: Chart, across: Scale) -> Iterator[Badge]:
    ends: list[float] = []
    for mark in chart.marks:
        at = round(100 * across(mark.x), 2)
        row = next((n for n, end in enumerate(ends) if at - end >= MARK_ROOM), len(ends))
        row = min(row, MAX_ROWS - 1)
        ends[row : row + 1] = [at]
        yield Badge(at, row, mark)


BLOCKS = "▁▂▃▄▅▆▇█"


def sparkline(line: Line, *, log: bool = False, width: int = 32) -> str:
    """Return a curve as one line of text, with the same x axis and the same kind of scale as the plot."""
    dots = line.dots
    if not dots:
        return ""
    first, last = dots[0].x, max(dot.x for dot in dots)
    columns: list[list[float]] = [[] for _ in range(min(width, len(dots)))]
    for dot in dots:
        share = (dot.x - first) / (last - first) if last > first else 0.0
        columns[min(len(columns) - 1, max(0, int(share * len(columns))))].append(max(-HUGE, min(dot.mean, HUGE)))
    middles = [mean_of(column) if column else None for column in columns]
    known = [max(value, TINY) if log else value for value in middles if value is not None]
    scale = Scale(min(known), max(known), log=log) if max(known) - min(known) > TINY else Scale(0.0, math.inf)
    return "".join(" " if value is None else BLOCKS[min(7, int(8 * scale(value)))] for value in middles)

"""What the report draws: the run's curves as values, thinned to what can be seen, with the findings beside them.

Pure: from a picture to frozen charts. How they look is decided in plots.py.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from itertools import groupby
from typing import TYPE_CHECKING, Literal, NamedTuple

from holdfast.judge.monitors.metrics import is_loss, is_score
from holdfast.judge.rules import by_id
from holdfast.show.plain import duration, size
from holdfast.show.report.wording import clean, count, number
from holdfast.words.events import as_number

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from holdfast.judge.monitors.memory import Point as Sample
    from holdfast.judge.picture import AttemptPicture, Picture
    from holdfast.judge.series import Series
    from holdfast.words.verdicts import Finding

MOST_POINTS = 600
"""In one chart, over all its lines: more than a phone has pixels across."""
FEWEST_POINTS = 6
"""That a stroke keeps, however many there are."""
FEWEST_NORMS = 10
"""Gradients that are looked at now and then make no curve."""
MOST_STROKES = 40
"""Attempts that are drawn: the newest."""
MOST_LINES = 6
MOST_MARKS = 10
MOST_SINGLE_METRICS = 3
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
    """One for each attempt: nothing was measured between two."""
    beside: bool = False
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
    says: str


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
    bad: tuple[tuple[float, float], ...] = ()
    """Where values were not finite."""
    log: bool = False
    extent: tuple[float, float] | None = None
    """The steps of the whole run, so that all charts stand under each other."""


def charts_of(picture: Picture, numbered: Sequence[tuple[int, Finding]]) -> tuple[Chart, ...]:
    """Every chart that the record has values for. `numbered` are the findings as the report counts them."""
    attempts = [attempt for attempt in picture.attempts if attempt.steps or attempt.memory.points]
    attempts = (attempts or picture.attempts)[-MOST_STROKES:]
    found = [
        _loss(attempts),
        _parts(attempts),
        *_metrics(attempts),
        _rate(attempts),
        _gradient(attempts),
        _memory(attempts),
        _pace(attempts),
        _epoch_pace(attempts),
    ]
    return tuple(_placed(chart, attempts, numbered) for chart in found if chart is not None)


def line_of(name: str, series: Iterable[Series], most: int = MOST_POINTS, *, beside: bool = False) -> Line:
    """One stroke for each series that has values, thinned together to at most so many points or the fewest of each."""
    full = [[Dot(p.step, p.mean, p.low, p.high, p.n) for p in each.points if math.isfinite(p.mean)] for each in series]
    full = [stroke for stroke in full if stroke]
    total = sum(len(stroke) for stroke in full)
    strokes = (thinned(stroke, max(FEWEST_POINTS, most * len(stroke) // total)) for stroke in full)
    return Line(clean(name, 60), tuple(tuple(stroke) for stroke in strokes), beside)


def thinned(dots: list[Dot], most: int) -> list[Dot]:
    """Neighbours joined, so that no peak is lost: it stays in `low` or `high`."""
    each = math.ceil(len(dots) / most)
    return [_joined(dots[i : i + each]) for i in range(0, len(dots), each)] if each > 1 else dots


def _joined(dots: list[Dot]) -> Dot:
    n = sum(dot.n for dot in dots)
    mean = math.fsum(dot.mean * (dot.n / n) for dot in dots)
    return Dot(dots[-1].x, mean, min(dot.low for dot in dots), max(dot.high for dot in dots), n)


def spans_decades(lines: Iterable[Line]) -> bool:
    """Whether only a logarithmic scale shows more than the highest peak."""
    means = [dot.mean for line in lines for dot in line.dots]
    return bool(means) and min(means) > 0 and max(means) / min(means) > 50


# --- one function for each chart --------------------------------------------------------------------------------------


def _loss(attempts: list[AttemptPicture]) -> Chart | None:
    series = [attempt.loss for attempt in attempts]
    bad = not_finite(attempts, lambda attempt: attempt.loss)
    line = line_of("loss", series)
    if not line.strokes and not bad:
        return None
    return Chart("loss", "Loss", _course(line, bad), (line,), bad=bad, log=spans_decades([line]))


def _parts(attempts: list[AttemptPicture]) -> Chart | None:
    names = list(dict.fromkeys(name for attempt in attempts for name in attempt.losses.parts))
    shown = names[:MOST_LINES]
    most = MOST_POINTS // max(1, len(shown))
    lines = [
        line_of(name, (attempt.losses.parts[name] for attempt in attempts if name in attempt.losses.parts), most)
        for name in shown
    ]
    lines = [line for line in lines if line.strokes]
    if not lines:
        return None
    caption = "; ".join(f"{line.name} {_from_to(line)}" for line in lines) + _and_more(len(names) - len(shown))
    return Chart("parts", "Loss components", caption, tuple(lines), log=spans_decades(lines))


def _metrics(attempts: list[AttemptPicture]) -> list[Chart]:
    names = list(dict.fromkeys(name for attempt in attempts for name in attempt.metrics.names()))
    across: Across = "step" if _steps_are_known(attempts) else "epoch"
    lines = {name: line for name in names if (line := _metric(name, attempts, across)).strokes}
    scores = {name: line for name, line in lines.items() if is_score(name)}
    together = [line for line in scores.values() if all(0 <= dot.mean <= 1 for dot in line.dots)]
    alone = [line for line in scores.values() if line not in together][:MOST_SINGLE_METRICS]
    losses = [line for name, line in lines.items() if is_loss(name) and not name.startswith("train/")]
    charts = [
        _of_metrics("metrics", "Metrics", together, across),
        *(_of_metrics(f"metric-{n}", f"Metric: {line.name}", [line], across) for n, line in enumerate(alone, 1)),
        _of_metrics("validation-loss", "Validation loss", losses, across),
    ]
    return [chart for chart in charts if chart is not None]


def _of_metrics(name: str, title: str, lines: list[Line], across: Across) -> Chart | None:
    if not lines:
        return None
    shown = lines[:MOST_LINES]
    caption = "; ".join(f"{line.name} {_from_to(line)}" for line in shown) + _and_more(len(lines) - len(shown))
    return Chart(name, title, caption, tuple(shown), across=across, log=spans_decades(shown))


def _steps_are_known(attempts: list[AttemptPicture]) -> bool:
    """Whether validations stand at steps of their own; a foreign log may know epochs only."""
    steps = [event.step for attempt in attempts for event in attempt.metrics.history]
    return len(set(steps)) * 2 > len(steps) and any(attempt.steps for attempt in attempts)


def _metric(name: str, attempts: list[AttemptPicture], across: Across) -> Line:
    strokes = []
    for attempt in attempts:
        stroke = []
        for n, event in enumerate(attempt.metrics.history, 1):
            value = as_number(event.values.get(name))
            if value is not None and math.isfinite(value):
                stroke.append(Dot(event.step if across == "step" else event.epoch or n, value, value, value))
        strokes.append(stroke)
    return Line(clean(name, 60), _connected(strokes, MOST_POINTS // MOST_LINES))


def _connected(strokes: list[list[Dot]], most: int) -> tuple[tuple[Dot, ...], ...]:
    """What comes once an epoch: an attempt that went on where the last one ended goes on with its stroke too."""
    joined: list[list[Dot]] = []
    for stroke in strokes:
        if joined and stroke and stroke[0].x > joined[-1][-1].x:
            joined[-1] = joined[-1] + stroke
        elif stroke:
            joined.append(stroke)
    return tuple(tuple(thinned(stroke, max(FEWEST_POINTS, most // len(joined)))) for stroke in joined)


def _rate(attempts: list[AttemptPicture]) -> Chart | None:
    line = line_of("learning rate", (attempt.rates.highest for attempt in attempts))
    if not line.strokes:
        return None
    lowest, highest = _extremes(line)
    caption = f"The highest of all parameter groups: {_from_to(line)}; at most {number(highest)}."
    if lowest == highest:
        caption = f"The highest of all parameter groups: {number(highest)} throughout."
    return Chart("rate", "Learning rate", caption, (line,))


def _gradient(attempts: list[AttemptPicture]) -> Chart | None:
    line = line_of("gradient norm", (attempt.gradients.norms for attempt in attempts))
    bad = not_finite(attempts, lambda attempt: attempt.gradients.norms)
    if len(line.dots) < FEWEST_NORMS:
        return None
    return Chart("gradient", "Gradient norm", _course(line, bad), (line,), bad=bad, log=spans_decades([line]))


def _memory(attempts: list[AttemptPicture]) -> Chart | None:
    sampled = [attempt for attempt in attempts if attempt.memory.points]
    if not sampled:
        return None
    by_step = any(attempt.steps for attempt in sampled)
    start = sampled[0].memory.points[0].at
    kinds: tuple[tuple[str, Callable[[Sample], tuple[float | None, float | None]]], ...] = (
        ("the training, all its processes", lambda point: (point.rss, point.peak)),
        ("on the device", lambda point: (point.driver, point.driver)),
        ("left on the machine", lambda point: (point.available, point.available)),
    )
    lines = []
    for name, value in kinds:
        strokes = []
        for attempt in sampled:
            dots = [
                Dot(point.step if by_step else point.at - start, mean, mean, peak or mean, point.n)
                for point in attempt.memory.points
                if (held := value(point)) and (mean := held[0]) is not None and (peak := held[1]) is not None
            ]
            strokes.append(tuple(thinned(_one_a_step(dots), max(FEWEST_POINTS, MOST_POINTS // (3 * len(sampled))))))
        if any(strokes):
            lines.append(Line(name, tuple(stroke for stroke in strokes if stroke)))
    if all(len(line.dots) < 2 for line in lines):
        return None
    most = max(attempt.memory.most_rss for attempt in sampled)
    least = min(attempt.memory.least_available or 0 for attempt in sampled)
    caption = f"The training held at most {size(most)}; at least {size(least)} were left on the machine."
    return Chart("memory", "Memory", caption, tuple(lines), across="step" if by_step else "time", unit="bytes")


def _one_a_step(dots: list[Dot]) -> list[Dot]:
    """Samples within one step, or before the first, as one."""
    return [_joined(list(same)) for _, same in groupby(dots, key=lambda dot: dot.x)]


def _pace(attempts: list[AttemptPicture]) -> Chart | None:
    line = line_of("seconds a step", (attempt.pace.steps for attempt in attempts))
    if not line.strokes:
        return None
    steps = sum(attempt.pace.steps.count for attempt in attempts)
    spent = sum(attempt.pace.step_seconds for attempt in attempts)
    waited = sum(attempt.pace.data_wait for attempt in attempts)
    slowest = max(attempt.pace.steps.highest for attempt in attempts)
    caption = f"{step_time(spent / max(1, steps))} a step on average; the slowest took {step_time(slowest)}."
    if spent > 0 and waited / spent >= 0.01:
        caption += f" {waited / spent:.0%} of it was waiting for data."
    return Chart("pace", "Step time", caption, (line,), unit="seconds", log=spans_decades([line]))


def _epoch_pace(attempts: list[AttemptPicture]) -> Chart | None:
    ends = [epoch.last_step for attempt in attempts for epoch in attempt.pace.epochs]
    # A training that goes on may count its epochs from one again; its steps it does not.
    across: Across = "step" if len(set(ends)) == len(ends) and all(ends) else "epoch"
    strokes = [
        [
            Dot(epoch.last_step if across == "step" else epoch.epoch, epoch.seconds, epoch.seconds, epoch.seconds)
            for epoch in attempt.pace.epochs
        ]
        for attempt in attempts
    ]
    line = Line("seconds an epoch", _connected(strokes, MOST_POINTS))
    if len(line.dots) < 3:
        return None
    slowest = max(line.dots, key=lambda dot: dot.high)
    caption = (
        f"{duration(line.dots[0].mean)} at first, {duration(line.dots[-1].mean)} at last, {duration(slowest.high)} at most "
        f"(the one to {across} {count(slowest.x)}). Evaluation, saving and sleep are left out."
    )
    return Chart("epochs", "Epoch time", caption, (line,), across=across, unit="seconds", log=spans_decades([line]))


# --- what they have in common -----------------------------------------------------------------------------------------


def _placed(chart: Chart, attempts: list[AttemptPicture], numbered: Sequence[tuple[int, Finding]]) -> Chart:
    """With the findings and restarts, where the chart goes by steps."""
    if chart.across != "step":
        return chart
    marks = [
        Mark(finding.step, n, finding.severity, f"{clean(finding.rule, 60)}, step {count(finding.step)}")
        for n, finding in numbered
        if finding.step is not None and _concerns(finding.rule, chart.name)
    ]
    gravest = sorted(marks, key=lambda mark: (SEVERE[mark.severity], mark.number))[:MOST_MARKS]
    marks = sorted(gravest, key=lambda mark: (mark.x, mark.number))
    started = [attempt for attempt in attempts if attempt.first_step is not None]
    restarts = tuple(float(attempt.first_step or 0) for attempt in started[1:])
    extent = None
    if started:
        extent = (
            float(min(attempt.first_step or 0 for attempt in started)),
            float(max(attempt.last_step for attempt in started)),
        )
    return replace(chart, marks=tuple(marks), restarts=restarts, extent=extent)


SHOWS = {
    "memory": ("memory",),
    "time": ("pace", "epochs"),
    "hang": ("pace",),
    "slept": ("pace", "epochs"),
    "gradients": ("gradient",),
    "rate": ("rate",),
    "component": ("parts",),
    "metrics": ("metrics", "validation-loss"),
    "overfitting": ("metrics", "validation-loss"),
}
"""A word in a rule's id -> the charts that show what it speaks of."""


def _concerns(rule: str, chart: str) -> bool:
    """A finding is marked where its evidence can be seen: a leak not in the loss, a zero loss not in the memory."""
    shown = {name for word in rule.split("-") for name in SHOWS.get(word, ())}
    known = by_id().get(rule)
    kind = known.kind if known is not None else "learning"
    if kind in ("learning", "proof", "exit"):
        shown.add("loss")
    if kind == "exit":
        shown.add("memory")
    return chart in shown


def not_finite(
    attempts: list[AttemptPicture], of: Callable[[AttemptPicture], Series]
) -> tuple[tuple[float, float], ...]:
    spans = []
    for attempt in attempts:
        series = of(attempt)
        if series.first_bad_step is not None:
            last = attempt.last_step if series.bad_in_a_row else series.first_bad_step
            spans.append((float(series.first_bad_step), float(max(last, series.first_bad_step))))
    return tuple(spans)


def _course(line: Line, bad: tuple[tuple[float, float], ...]) -> str:
    """In words what the curve shows, for those who cannot see it."""
    since = f"Not finite from step {count(bad[0][0])} on." if bad else ""
    if not line.strokes:
        return f"{since} No value was finite."
    dots = line.dots
    lowest = min(dots, key=lambda dot: dot.low)
    said = _from_to(line).capitalize()
    if lowest is not dots[-1] and lowest.low < dots[-1].mean:
        said += f"; lowest {number(lowest.low)} near step {count(lowest.x)}"
    return f"{said}. {since}".strip()


def _from_to(line: Line) -> str:
    dots = line.dots
    first, last = dots[0].mean, dots[-1].mean
    if _extremes(line) == (first, first):
        return f"{number(first)} throughout"
    return f"from {number(first)} to {number(last)}"


def _extremes(line: Line) -> tuple[float, float]:
    return min(dot.low for dot in line.dots), max(dot.high for dot in line.dots)


def _and_more(left: int) -> str:
    return f"; and {left} more" if left > 0 else ""


def step_time(seconds: float) -> str:
    return f"{seconds * 1000:.3g} ms" if seconds < 1 else f"{seconds:.3g} s" if seconds < 60 else duration(seconds)

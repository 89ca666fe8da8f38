"""The curves of a run, one function per chart, with findings marked in the chart that shows their evidence."""

from __future__ import annotations

import math
import re
from dataclasses import replace
from itertools import groupby
from typing import TYPE_CHECKING

from holdfast.diagnosis.aggregators.metrics import is_loss, is_score, is_train
from holdfast.diagnosis.rules import by_id
from holdfast.render.report.charts import (
    MAX_LINES,
    MAX_POINTS,
    MIN_POINTS,
    SEVERE,
    Chart,
    Dot,
    Line,
    Mark,
    and_more,
    connect,
    direction,
    extremes,
    from_to,
    line_of,
    merge,
    not_finite,
    spans_decades,
    split_at_gaps,
    step_time,
    thin,
)
from holdfast.render.report.text import clean, count, number
from holdfast.schema.events import as_number
from holdfast.schema.units import duration, size

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from holdfast.diagnosis.aggregators.memory import Point as Sample
    from holdfast.diagnosis.aggregators.timing import EpochTiming
    from holdfast.diagnosis.run_state import AttemptState, RunState
    from holdfast.render.report.charts import Across
    from holdfast.schema.verdicts import Finding

    Numbered = Sequence[tuple[int, Sequence[Finding]]]

MIN_NORMS = 10
"""Fewer gradient norms than this make no curve."""
MAX_STROKES = 40
"""The newest attempts are drawn."""
MAX_MARKS = 10
PLENTY = 4
"""Available memory is not drawn if it was always more than this multiple of what the training used."""
MAX_SINGLE_METRICS = 3


def charts_of(state: RunState, numbered: Numbered) -> tuple[Chart, ...]:
    """Return every chart that has values. `numbered` are the findings with their numbers in the report, the shown one first."""
    attempts = [attempt for attempt in state.attempts if attempt.steps or attempt.memory.points]
    attempts = (attempts or state.attempts)[-MAX_STROKES:]
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
    return tuple(_add_marks(chart, attempts, numbered) for chart in found if chart is not None)


def _loss(attempts: list[AttemptState]) -> Chart | None:
    series = [attempt.loss for attempt in attempts]
    nonfinite = not_finite(attempts, lambda attempt: attempt.loss)
    line = line_of("loss", series)
    if not line.strokes and not nonfinite:
        return None
    return Chart("loss", "Loss", direction(line, nonfinite), (line,), nonfinite=nonfinite, log=spans_decades([line]))


def _parts(attempts: list[AttemptState]) -> Chart | None:
    names = list(dict.fromkeys(name for attempt in attempts for name in attempt.losses.parts))
    shown = names[:MAX_LINES]
    most = MAX_POINTS // max(1, len(shown))
    lines = [
        line_of(name, (attempt.losses.parts[name] for attempt in attempts if name in attempt.losses.parts), most)
        for name in shown
    ]
    lines = [line for line in lines if line.strokes]
    if not lines:
        return None
    caption = "; ".join(f"{line.name} {from_to(line)}" for line in lines) + and_more(len(names) - len(shown))
    return Chart("parts", "Loss components", caption, tuple(lines), log=spans_decades(lines))


def _metrics(attempts: list[AttemptState]) -> list[Chart]:
    names = dict.fromkeys(name for attempt in attempts for event in attempt.metrics.history for name in event.values)
    across: Across = "step" if _steps_are_known(attempts) else "epoch"
    lines = {name: line for name in names if (line := _metric(name, attempts, across)).strokes}
    # If no steps were recorded, use the training losses that the log has per epoch.
    trained = [line for name, line in lines.items() if is_train(name) and is_loss(name)]
    trained = [] if any(attempt.loss.count for attempt in attempts) else trained
    lines = {name: line for name, line in lines.items() if not is_train(name) and not _is_bookkeeping(name)}
    losses = [line for name, line in lines.items() if is_loss(name)]
    together = [line for name, line in lines.items() if is_score(name) and all(0 <= dot.mean <= 1 for dot in line.dots)]
    alone = [line for line in lines.values() if line not in losses and line not in together][:MAX_SINGLE_METRICS]
    charts = [
        _of_metrics("loss", "Training loss", trained, across),
        _of_metrics("metrics", "Metrics", together, across),
        *(_of_metrics(f"metric-{n}", f"Metric: {line.name}", [line], across) for n, line in enumerate(alone, 1)),
        _of_metrics("validation-loss", "Validation loss", losses, across),
    ]
    return [chart for chart in charts if chart is not None]


BOOKKEEPING = re.compile("lr|learning|time|epoch|steps?|speed|runtime|seconds?|flop?s")
"""Names of values that trainers log in addition to their metrics."""


def _is_bookkeeping(name: str) -> bool:
    return any(map(BOOKKEEPING.fullmatch, re.split(r"[^a-z0-9]+", name.lower())))


def _of_metrics(name: str, title: str, lines: list[Line], across: Across) -> Chart | None:
    if not lines:
        return None
    shown = lines[:MAX_LINES]
    caption = "; ".join(f"{line.name} {from_to(line)}" for line in shown) + and_more(len(lines) - len(shown))
    return Chart(name, title, caption, tuple(shown), across=across, log=spans_decades(shown))


def _steps_are_known(attempts: list[AttemptState]) -> bool:
    """Return True if validations have distinct steps. A log of another tool may have epochs only."""
    steps = [event.step for attempt in attempts for event in attempt.metrics.history]
    return len(set(steps)) * 2 > len(steps) and any(attempt.steps for attempt in attempts)


def _metric(name: str, attempts: list[AttemptState], across: Across) -> Line:
    strokes = []
    for attempt in attempts:
        stroke = []
        for n, event in enumerate(attempt.metrics.history, 1):
            value = as_number(event.values.get(name))
            if value is not None and math.isfinite(value):
                stroke.append(Dot(event.step if across == "step" else event.epoch or n, value, value, value))
        strokes.append(stroke)
    return Line(clean(name, 60), connect(strokes, MAX_POINTS // MAX_LINES))


def _rate(attempts: list[AttemptState]) -> Chart | None:
    line = line_of("learning rate", (attempt.rates.highest for attempt in attempts))
    if not line.strokes:
        return None
    lowest, highest = extremes(line)
    caption = f"The highest of all parameter groups: {from_to(line)}; max {number(highest)}."
    if lowest == highest:
        caption = f"The highest of all parameter groups: {number(highest)} throughout."
    return Chart("rate", "Learning rate", caption, (line,))


def _gradient(attempts: list[AttemptState]) -> Chart | None:
    whole = line_of("gradient norm", (attempt.gradients.norms for attempt in attempts))
    line = replace(whole, strokes=tuple(piece for stroke in whole.strokes for piece in split_at_gaps(stroke)))
    nonfinite = not_finite(attempts, lambda attempt: attempt.gradients.norms)
    if len(line.dots) < MIN_NORMS:
        return None
    caption = direction(line, nonfinite)
    if len(line.strokes) > len(whole.strokes):
        caption += " Gradients were not sampled where the line is broken."
    return Chart("gradient", "Gradient norm", caption, (line,), nonfinite=nonfinite, log=spans_decades([line]))


def _memory(attempts: list[AttemptState]) -> Chart | None:
    sampled = [attempt for attempt in attempts if attempt.memory.points]
    if not sampled:
        return None
    by_step = any(attempt.steps for attempt in sampled)
    start = sampled[0].memory.points[0].at
    kinds: tuple[tuple[str, Callable[[Sample], tuple[float | None, float | None]]], ...] = (
        ("training, all processes", lambda point: (point.rss, point.peak)),
        ("device", lambda point: (point.driver, point.driver)),
        ("available on the machine", lambda point: (point.available, point.available)),
    )
    lines = []
    for name, value in kinds:
        strokes = []
        for attempt in sampled:
            dots = [
                Dot(point.step if by_step else point.at - start, mean, mean, peak or mean, point.n)
                for point in attempt.memory.points
                if (values := value(point)) and (mean := values[0]) is not None and (peak := values[1]) is not None
            ]
            strokes.append(tuple(thin(_one_a_step(dots), max(MIN_POINTS, MAX_POINTS // (3 * len(sampled))))))
        if any(strokes):
            lines.append(Line(name, tuple(stroke for stroke in strokes if stroke)))
    if all(len(line.dots) < 2 for line in lines):
        return None
    most = max(attempt.memory.most_rss for attempt in sampled)
    least = min(attempt.memory.least_available or 0 for attempt in sampled)
    highest = max(extremes(line)[1] for line in lines[:-1])
    if least > PLENTY * highest:
        lines = lines[:-1]  # it would flatten the curve that matters
    caption = f"Training used at most {size(most)}; at least {size(least)} stayed available on the machine."
    return Chart("memory", "Memory", caption, tuple(lines), across="step" if by_step else "time", unit="bytes")


def _one_a_step(dots: list[Dot]) -> list[Dot]:
    """Merge the samples of one step."""
    return [merge(list(same)) for _, same in groupby(dots, key=lambda dot: dot.x)]


def _pace(attempts: list[AttemptState]) -> Chart | None:
    line = line_of("seconds per step", (attempt.pace.steps for attempt in attempts))
    if not line.strokes:
        return None
    steps = sum(attempt.pace.steps.count for attempt in attempts)
    spent = sum(attempt.pace.step_seconds for attempt in attempts)
    waited = sum(attempt.pace.data_wait for attempt in attempts)
    slowest = max(attempt.pace.steps.highest for attempt in attempts)
    caption = f"{step_time(spent / max(1, steps))} per step on average; the slowest took {step_time(slowest)}."
    if spent > 0 and waited / spent >= 0.01:
        caption += f" {waited / spent:.0%} of it was waiting for data."
    return Chart("pace", "Step time", caption, (line,), unit="seconds", log=spans_decades([line]))


def _epoch_pace(attempts: list[AttemptState]) -> Chart | None:
    timed = _whole_epochs(attempts)
    ends = [epoch.last_step for epochs in timed for epoch in epochs]
    # A resumed training may count its epochs from one again, but not its steps.
    across: Across = "step" if len(set(ends)) == len(ends) and all(ends) else "epoch"
    strokes = [
        [
            Dot(epoch.last_step if across == "step" else epoch.epoch, epoch.seconds, epoch.seconds, epoch.seconds)
            for epoch in epochs
        ]
        for epochs in timed
    ]
    line = Line("seconds per epoch", connect(strokes, MAX_POINTS))
    if len(line.dots) < 3:
        return None
    slowest = max(line.dots, key=lambda dot: dot.high)
    caption = (
        f"{duration(line.dots[0].mean)} for the first, {duration(line.dots[-1].mean)} for the last, the longest took {duration(slowest.high)} "
        f"({'epoch' if across == 'epoch' else 'it ended at step'} {count(slowest.x)}). Evaluation, saving and sleep are not included."
    )
    if sum(map(len, timed)) < sum(len(attempt.pace.epochs) for attempt in attempts):
        caption += " Nor are epochs that were interrupted by a restart."
    return Chart("epochs", "Epoch time", caption, (line,), across=across, unit="seconds", log=spans_decades([line]))


def _whole_epochs(attempts: list[AttemptState]) -> list[list[EpochTiming]]:
    """Return the epochs of each attempt, without the rest of an epoch that the attempt before had started."""
    timed: list[list[EpochTiming]] = []
    ends: set[int] = set()
    for attempt in attempts:
        epochs = list(attempt.pace.epochs)
        begun = attempt.resumed.step if attempt.resumed is not None else 0
        if begun and epochs and len(epochs) == attempt.pace.epochs_done:
            first = epochs[0].last_step
            epochs = epochs if begun in ends and first > begun else epochs[1:]
        timed.append(epochs)
        ends |= {epoch.last_step for epoch in attempt.pace.epochs}
    return timed


# --- marks -------------------------------------------------------------------------------------------


def _add_marks(chart: Chart, attempts: list[AttemptState], numbered: Numbered) -> Chart:
    """Add findings and restarts to a chart over steps or epochs."""
    if chart.across == "time":
        return chart
    shown: dict[tuple[float, int], Mark] = {}
    others: dict[tuple[float, int], Mark] = {}
    for n, group in numbered:
        for nth, finding in enumerate(group if _concerns(group[0].rule, chart.name) else ()):
            x = finding.step if chart.across == "step" else finding.epoch
            if x is not None and (x, n) not in shown:
                text = f"{clean(finding.rule, 60)}, {chart.across} {count(x)}"
                (others if nth else shown)[x, n] = Mark(x, n, finding.severity, text)
    most_severe = [*sorted(shown.values(), key=_severity), *sorted(others.values(), key=_severity)][:MAX_MARKS]
    marks = sorted(most_severe, key=lambda mark: (mark.x, mark.number))
    if chart.across == "epoch":
        return replace(chart, marks=tuple(marks))
    started = [attempt for attempt in attempts if attempt.first_step is not None]
    restarts = tuple(float(attempt.first_step or 0) for attempt in started[1:])
    extent = None
    if started:
        extent = (
            float(min(attempt.first_step or 0 for attempt in started)),
            float(max(attempt.last_step for attempt in started)),
        )
    return replace(chart, marks=tuple(marks), restarts=restarts, extent=extent)


def _severity(mark: Mark) -> tuple[int, int]:
    return SEVERE[mark.severity], mark.number


def _concerns(rule: str, chart: str) -> bool:
    """Return True if the chart shows the evidence of the rule: a leak is not marked in the loss chart."""
    known = by_id().get(rule)
    shown = set(known.charts) if known is not None else set()
    kind = known.kind if known is not None else "learning"
    if kind in ("learning", "proof", "exit"):
        shown.add("loss")
    if kind == "exit":
        shown.add("memory")
    return chart in shown

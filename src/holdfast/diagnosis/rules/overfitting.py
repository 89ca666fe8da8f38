"""A validation loss rises while the corresponding training loss falls.

**What it means.** Since its best validation, the model has been memorizing its training data: what it learns no longer
helps on data that it has not seen. The best checkpoint is an earlier one.

**Why it happens.** Possible causes are too little data for the size of the model, augmentation that was removed, label
errors, too many epochs, or a validation set from a different distribution than the training set.

**What to do.** Use the checkpoint of the best epoch. Stop earlier (`patience`), restore augmentation, or add weight
decay or data. If only one component of the loss rises (cls and not box), check the labels that this component uses.

**When it is reported.** All of these conditions must be met:

- There are at least 8 validations, at least 5 of them after the lowest validation loss.
- The validation loss is now at least 15% above its lowest value, and the increase is larger than the noise.
- The same component of the training loss is more than 2% lower than it was when the validation loss was lowest.
  Training losses are taken from the same results file (`train/cls_loss`), or from the observed steps.

**Severity.** It is reported as `warn`, or as a `note` if the score that selects the best checkpoint is still improving:
the loss can rise while the score still improves.

**When it is not reported.** Nothing is reported in short runs, if the training loss is unknown or does not fall, or for
losses that go below zero.

Sources: in one reported case, val/cls_loss rose to 5.1 while the training loss fell, after five changes had been made
at once.
"""

from __future__ import annotations

import math
import re
import statistics
from itertools import pairwise
from typing import TYPE_CHECKING, NamedTuple

from holdfast.diagnosis.aggregators.metrics import best_of, is_validation_loss, newest_of, over_attempts
from holdfast.diagnosis.rule import Case, Finding, Limits, Rule, RunState
from holdfast.schema import events
from holdfast.testing.series import parts, validations

if TYPE_CHECKING:
    from holdfast.diagnosis import series
    from holdfast.diagnosis.aggregators.metrics import Point

LIMITS = {"validations": 8, "since_the_best": 5, "rise": 0.15, "fall": 0.02}
NOISE = 3.0
PREFIX = re.compile(r"^(?:val|valid|validation|eval|test|dev)[^a-z0-9]+", re.IGNORECASE)
STILL_IMPROVING = 3


class Rise(NamedTuple):
    name: str
    best: Point
    now: float
    since: int

    @property
    def share(self) -> float:
        return self.now / self.best.value - 1.0


def judge(state: RunState) -> Finding | None:
    limits = state.get_limits("overfitting", LIMITS)
    by_attempt = state.validated
    newest = newest_of(by_attempt)
    if newest is None or sum(len(metrics.history) for metrics in by_attempt) < limits["validations"]:
        return None
    rises = []
    for name in filter(is_validation_loss, newest.names()):
        track = over_attempts(by_attempt, name)
        if track.lowest is None or len(track.points) - 1 - track.lowest < limits["since_the_best"]:
            continue
        rise = _find_rise(name, track.points, track.lowest, limits)
        training_fall = _describe_training_fall(state, name, rise.best, limits["fall"]) if rise is not None else None
        if rise is not None and training_fall is not None:
            rises.append((rise, training_fall))
    if not rises:
        return None
    rise, training_fall = max(rises, key=lambda pair: pair[0].share)
    best = best_of(by_attempt)
    is_improving = best is not None and best.higher_is_better and best.since < STILL_IMPROVING
    return Finding(
        severity="note" if is_improving else "warn",
        message=f"{rise.name} has risen by {100 * rise.share:.0f}% since epoch {rise.best.epoch} (from {rise.best.value:.4g} "
        f"to {rise.now:.4g}) while {training_fall}: the model is memorizing its training data.",
        evidence=[
            *(
                f"{other.name}: best {other.best.value:.4g} in epoch {other.best.epoch}, now {other.now:.4g}, "
                f"{other.since} validations later"
                for other, _ in rises
            ),
            training_fall,
            *(
                [f"{best.name} is still improving: {best.value:.4g} in epoch {best.epoch}"]
                if is_improving and best
                else []
            ),
        ],
        remedies=[
            f"use the checkpoint of epoch {best.epoch if best is not None else rise.best.epoch}",
            "stop earlier, for example with patience=10",
            "restore augmentation that was removed, one change at a time; add weight decay or data",
        ],
        confidence="likely",
    )


def _find_rise(name: str, points: list[Point], lowest: int, limits: Limits) -> Rise | None:
    """Return how far the newest validations are above the best one, or None if that is little or within the noise."""
    values = [point.value for point in points]
    newest = values[-5:]
    if len(values) < limits["validations"] or not all(map(math.isfinite, values[lowest:])) or values[lowest] <= 0.0:
        return None
    around = statistics.median(value for value in values[max(0, lowest - 1) : lowest + 2] if math.isfinite(value))
    now = statistics.median(newest[-3:])
    count_above = sum(value > (1 + limits["rise"] / 3) * around for value in newest)
    if now < (1 + limits["rise"]) * around or count_above < len(newest) - 1:
        return None
    noise = 1.05 * statistics.median(abs(b - a) for a, b in pairwise(values[lowest:]))  # last: most expensive
    if now - around <= NOISE * noise:
        return None
    return Rise(name, points[lowest], now, len(points) - 1 - lowest)


def _describe_training_fall(state: RunState, name: str, best: Point, min_fall: float) -> str | None:
    """Describe how the training counterpart of a validation loss fell since the best validation; None if it did not."""
    part = PREFIX.sub("", name)
    by_attempt = state.validated
    for candidate in (f"train/{part}", f"train_{part}", f"training_{part}", f"train_{part}_epoch", part):
        points = over_attempts(by_attempt, candidate).points
        then = [point.value for point in points if abs(point.epoch - best.epoch) <= 1]
        now = [point.value for point in points if point.epoch > best.epoch][-3:]
        if then and now:
            return _describe_fall(candidate, statistics.median(then), statistics.median(now), min_fall)
    levels = _compute_levels(_collect_points(state, part), best.step)
    return None if levels is None else _describe_fall(f"the training {part}", *levels, min_fall)


def _collect_points(state: RunState, part: str) -> list[series.Point]:
    """Return one part of the training loss over all attempts. Steps that a later attempt repeated replace earlier ones."""
    points: list[series.Point] = []
    for attempt in state.ancestry:
        losses = attempt.losses
        series_of_part = losses.parts.get(part) or (losses.whole if len(losses.parts) < 2 else None)
        if series_of_part is not None and series_of_part.points and attempt.first_step is not None:
            points = [point for point in points if point.step < attempt.first_step] + series_of_part.points
    return points


def _compute_levels(points: list[series.Point], step: int) -> tuple[float, float] | None:
    """Return the mean before a step and at the end, each over a tenth of all points."""
    width = max(3, len(points) // 10)
    before = [point.mean for point in points if point.step <= step][-width:]
    after = [point.mean for point in points if point.step > step][-width:]
    return (statistics.fmean(before), statistics.fmean(after)) if len(before) >= 3 <= len(after) else None


def _describe_fall(name: str, then: float, now: float, min_fall: float) -> str | None:
    return f"{name} fell from {then:.4g} to {now:.4g}" if now < (1 - min_fall) * then else None


UP = [5.0, 4.2, 3.8, 3.9, 4.1, 4.3, 4.5, 4.7, 4.9, 5.1]
DOWN = [3.0, 2.4, 2.0, 1.7, 1.5, 1.3, 1.2, 1.1, 1.0, 0.9]
RULE = Rule(
    kind="learning",
    on=(events.Metrics,),
    judge=judge,
    limits=LIMITS,
    retractable=True,
    charts=("metrics", "validation-loss"),
    cases=lambda: [
        Case(
            "cls_loss rises on the validation set only",
            "warn",
            validations(train__cls_loss=DOWN, val__cls_loss=UP, train__box_loss=DOWN, val__box_loss=DOWN),
        ),
        Case(
            "the training loss is known only from the observed steps",
            "warn",
            parts(1000, box_loss=1.0, cls_loss=[3.0 - n / 500 for n in range(1000)]),
            validations(val__cls_loss=UP),
        ),
        Case(
            "the score still improves",
            "note",
            validations(train__loss=DOWN, val__loss=UP, val__accuracy=[0.1 * n for n in range(10)]),
        ),
        Case("both losses fall", None, validations(train__loss=DOWN, val__loss=DOWN)),
        Case("both losses rise, which is not overfitting", None, validations(train__loss=UP, val__loss=UP)),
        Case(
            "noise around a plateau",
            None,
            validations(
                train__loss=[*DOWN, *DOWN],
                val__loss=[2.0, 1.4, 1.0, *[1.1, 1.3, 1.05, 1.25, 1.1, 1.3, 1.0] * 2, 1.2, 1.3, 1.1],
            ),
        ),
        Case("a short run", None, validations(train__loss=DOWN[:6], val__loss=UP[:6])),
        Case("only the validation loss is known", None, validations(val__loss=UP)),
        Case(
            "a log-likelihood below zero",
            None,
            validations(train__loss=DOWN, val__loss=[-5.0 + n / 9 for n in range(10)]),
        ),
    ],
)

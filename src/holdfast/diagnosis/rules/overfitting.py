"""A validation loss rises while its training counterpart falls.

**What it means.** Since its best validation the model learns its training data by heart: what it learns no longer helps on data
that it has not seen. The best checkpoint is behind it.

**Why it happens.** Little data for the size of the model, augmentation that was taken away, labels with errors, too many epochs; or
a validation set of another kind than the training set.

**What to do.** Use the checkpoint of the best epoch. Stop earlier (`patience`), bring augmentation back, add weight decay or data. If
only one part of the loss rises (cls and not box), look at the labels of that part.

**What it needs to see.** At least 8 validations, and 5 since the lowest; now at least 15% above it and beyond its noise; and the
same part of the training loss lower than it was then. Training losses come from the same record (`train/cls_loss`) or from
the steps.

**When it stays silent.** In short runs, where the training loss is not seen or does not fall, and on losses that go below zero. Where
the score that chooses the checkpoint is still improving, it is a note: a loss may rise while decisions get better.

Sources: the second field report (val/cls_loss 5.1 while training fell; its author blamed five changes at once).
"""

from __future__ import annotations

import math
import re
import statistics
from itertools import pairwise
from typing import TYPE_CHECKING, NamedTuple

from holdfast.diagnosis.aggregators.metrics import best_of, is_validation_loss, newest_of, over_attempts
from holdfast.diagnosis.rule import Case, Rule
from holdfast.schema import events
from holdfast.schema.verdicts import Finding
from holdfast.testing.histories import started
from holdfast.testing.series import parts, validations

if TYPE_CHECKING:
    from collections.abc import Mapping

    from holdfast.diagnosis import series
    from holdfast.diagnosis.aggregators.metrics import Point
    from holdfast.diagnosis.run_state import RunState

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
    limits = state.tuned("overfitting", LIMITS)
    several = state.validated
    newest = newest_of(several)
    if newest is None or sum(len(each.history) for each in several) < limits["validations"]:
        return None
    risen = []
    for name in filter(is_validation_loss, newest.names()):
        track = over_attempts(several, name)
        if track.lowest is None or len(track.points) - 1 - track.lowest < limits["since_the_best"]:
            continue
        rise = _rise(name, track.points, track.lowest, limits)
        fell = _training_fell(state, name, rise.best, limits["fall"]) if rise is not None else None
        if rise is not None and fell is not None:
            risen.append((rise, fell))
    if not risen:
        return None
    rise, fell = max(risen, key=lambda pair: pair[0].share)
    best = best_of(several)
    improving = best is not None and best.higher_is_better and best.since < STILL_IMPROVING
    return Finding(
        rule="overfitting",
        severity="note" if improving else "warn",
        message=f"{rise.name} has risen by {100 * rise.share:.0f}% since epoch {rise.best.epoch} (from {rise.best.value:.4g} "
        f"to {rise.now:.4g}) while {fell}: the model learns its training data by heart.",
        evidence=[
            *(
                f"{each.name}: best {each.best.value:.4g} in epoch {each.best.epoch}, now {each.now:.4g}, "
                f"{each.since} validations later"
                for each, _ in risen
            ),
            fell,
            *(
                [f"{best.name} is still improving: {best.value:.4g} in epoch {best.epoch}"]
                if improving and best
                else []
            ),
        ],
        remedies=[
            f"use the checkpoint of epoch {best.epoch if best is not None else rise.best.epoch}",
            "stop earlier: with a patience of 10 validations, say",
            "bring back augmentation that was taken away, one change at a time; add weight decay or data",
        ],
        confidence="likely",
    )


def _rise(name: str, points: list[Point], lowest: int, limits: Mapping[str, float]) -> Rise | None:
    """How far the newest validations stand above the best one, where that is far and no noise."""
    values = [point.value for point in points]
    newest = values[-5:]
    if len(values) < limits["validations"] or not all(map(math.isfinite, values[lowest:])) or values[lowest] <= 0.0:
        return None
    around = statistics.median(value for value in values[max(0, lowest - 1) : lowest + 2] if math.isfinite(value))
    now = statistics.median(newest[-3:])
    above = sum(value > (1 + limits["rise"] / 3) * around for value in newest)
    if now < (1 + limits["rise"]) * around or above < len(newest) - 1:
        return None
    noise = 1.05 * statistics.median(abs(b - a) for a, b in pairwise(values[lowest:]))  # last: it costs most
    if now - around <= NOISE * noise:
        return None
    return Rise(name, points[lowest], now, len(points) - 1 - lowest)


def _training_fell(state: RunState, name: str, best: Point, least: float) -> str | None:
    """That the training counterpart of a validation loss is lower than it was at the best validation, in words."""
    part = PREFIX.sub("", name)
    several = state.validated
    for wanted in (f"train/{part}", f"train_{part}", f"training_{part}", f"train_{part}_epoch", part):
        points = over_attempts(several, wanted).points
        then = [point.value for point in points if abs(point.epoch - best.epoch) <= 1]
        now = [point.value for point in points if point.epoch > best.epoch][-3:]
        if then and now:
            return _lower(wanted, statistics.median(then), statistics.median(now), least)
    then_and_now = _levels(_by_step(state, part), best.step)
    return None if then_and_now is None else _lower(f"the training's {part}", *then_and_now, least)


def _by_step(state: RunState, part: str) -> list[series.Point]:
    """A part of the training loss over all attempts; what a later one did again replaces what it was before."""
    points: list[series.Point] = []
    for attempt in state.ancestry:
        losses = attempt.losses
        again = losses.parts.get(part) or (losses.whole if len(losses.parts) < 2 else None)
        if again is not None and again.points and attempt.first_step is not None:
            points = [point for point in points if point.step < attempt.first_step] + again.points
    return points


def _levels(points: list[series.Point], step: int) -> tuple[float, float] | None:
    """Around a step, and at the end: a tenth of all points each."""
    wide = max(3, len(points) // 10)
    before = [point.mean for point in points if point.step <= step][-wide:]
    after = [point.mean for point in points if point.step > step][-wide:]
    return (statistics.fmean(before), statistics.fmean(after)) if len(before) >= 3 <= len(after) else None


def _lower(name: str, then: float, now: float, least: float) -> str | None:
    return f"{name} fell from {then:.4g} to {now:.4g}" if now < (1 - least) * then else None


UP = [5.0, 4.2, 3.8, 3.9, 4.1, 4.3, 4.5, 4.7, 4.9, 5.1]
DOWN = [3.0, 2.4, 2.0, 1.7, 1.5, 1.3, 1.2, 1.1, 1.0, 0.9]
RULE = Rule(
    id="overfitting",
    kind="learning",
    on=(events.Metrics,),
    judge=judge,
    limits=LIMITS,
    page=__doc__ or "",
    retractable=True,
    cases=[
        Case(
            "cls rises on the validation set only",
            [
                *started(),
                *validations(train__cls_loss=DOWN, val__cls_loss=UP, train__box_loss=DOWN, val__box_loss=DOWN),
            ],
            "warn",
        ),
        Case(
            "the training's part comes from its steps",
            [
                *started(),
                *parts(1000, box_loss=1.0, cls_loss=[3.0 - n / 500 for n in range(1000)]),
                *validations(val__cls_loss=UP),
            ],
            "warn",
        ),
        Case(
            "the score still improves",
            [*started(), *validations(train__loss=DOWN, val__loss=UP, val__accuracy=[0.1 * n for n in range(10)])],
            "note",
        ),
        Case("both fall", [*started(), *validations(train__loss=DOWN, val__loss=DOWN)], None),
        Case("both rise: that is no overfitting", [*started(), *validations(train__loss=UP, val__loss=UP)], None),
        Case(
            "noise around a plateau",
            [
                *started(),
                *validations(
                    train__loss=[*DOWN, *DOWN],
                    val__loss=[2.0, 1.4, 1.0, *[1.1, 1.3, 1.05, 1.25, 1.1, 1.3, 1.0] * 2, 1.2, 1.3, 1.1],
                ),
            ],
            None,
        ),
        Case("a short run", [*started(), *validations(train__loss=DOWN[:6], val__loss=UP[:6])], None),
        Case("only the validation is known", [*started(), *validations(val__loss=UP)], None),
        Case(
            "a log-likelihood below zero",
            [*started(), *validations(train__loss=DOWN, val__loss=[-5.0 + n / 9 for n in range(10)])],
            None,
        ),
    ],
)

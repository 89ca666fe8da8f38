"""Rungs that make validation lighter, or say where its numbers come from."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from holdfast.remedies.step import Remedy, RemedyStep, remedy

if TYPE_CHECKING:
    from collections.abc import Callable

    from holdfast.remedies.context import RemedyContext
    from holdfast.schema.verdicts import Change

MAX_BOXES = 100
LESS_OFTEN = 5


def _smaller_batch(now: RemedyContext) -> Remedy | None:
    batch = now.validation_batch
    if batch is None or batch <= 1:
        return None
    smaller = max(1, batch // 4)
    why, costs = "validation holds a whole batch of predictions", "time in validation"
    change = now.change("validation.batch", smaller, why=why, costs=costs)
    if change is None:
        return None
    return remedy(
        "validation-batch",
        f"Lighter validation: {smaller} images at a time in place of {batch}. The scores stay as they are, but for a little padding.",
        change,
        _no_plots(now),
    )


VALIDATION_BATCH = RemedyStep(
    "validation-batch",
    "A quarter of the validation batch, down to 1, and no plots with it. Ultralytics takes twice the training's batch unless it is told.",
    "time in validation, and Ultralytics' own plots; the scores stay as they are",
    _smaller_batch,
)


def _no_plots(now: RemedyContext) -> Change | None:
    """They are drawn in validations, and ride along: for themselves they would not be worth an attempt."""
    if not now.ultralytics or now.cause == "nms-cut-short":
        return None
    costs = "Ultralytics' own images of the training are not drawn"
    return now.change("plots", False, why="they are drawn in validations", costs=costs)


def _fewer_boxes(now: RemedyContext) -> Remedy | None:
    most = now.plan.validation.max_det or now.number("max_det") or 300
    if not now.ultralytics or most <= MAX_BOXES:
        return None
    return remedy(
        "validation-boxes",
        f"Lighter validation: at most {MAX_BOXES} boxes an image in place of {most:g}.",
        now.change(
            "validation.max_det",
            MAX_BOXES,
            why="boxes of all images are kept until they are scored",
            costs=_CROWDED,
        ),
    )


_CROWDED = "the scores of images with more objects than that are too low"
VALIDATION_BOXES = RemedyStep(
    "validation-boxes", "At most 100 boxes an image while the training validates (`max_det`).", _CROWDED, _fewer_boxes
)


def _less_often(now: RemedyContext) -> Remedy | None:
    if not now.ultralytics or now.plan.validation.every >= LESS_OFTEN:
        return None
    return remedy(
        "validation-less-often",
        f"Validation every {LESS_OFTEN} epochs and at the end.",
        now.change("validation.every", LESS_OFTEN, why="each validation is a peak of memory", costs=_COARSE),
    )


_COARSE = "best.pt is chosen among fewer epochs"
VALIDATION_LESS_OFTEN = RemedyStep(
    "validation-less-often", "Validation every 5 epochs, and at the end.", _COARSE, _less_often
)


def _where(remedy_step: RemedyStep, when: str, holds: Callable[[RemedyContext], bool]) -> RemedyStep:
    return replace(remedy_step, conditional=when, remedy=lambda now: remedy_step.remedy(now) if holds(now) else None)


DIED_IN_VALIDATION = tuple(
    _where(remedy_step, "where it ended in a validation", lambda now: now.in_validation)
    for remedy_step in (VALIDATION_BATCH, VALIDATION_BOXES, VALIDATION_LESS_OFTEN)
)
PEAK_IN_VALIDATION = _where(
    VALIDATION_BATCH,
    "where validation was seen to hold more than training",
    lambda now: now.validation_is_peak and now.plan.validation.batch is None,
)


def _on_cpu(now: RemedyContext) -> Remedy | None:
    if not now.ultralytics:
        return None
    return remedy(
        "validation-on-cpu",
        "best.pt is validated once more on the CPU at the end: that score is the one to trust.",
        now.change(
            "validation.on_cpu",
            "always",
            why="two validations of one checkpoint contradict each other",
            costs="time at the end",
        ),
    )


VALIDATION_ON_CPU = RemedyStep(
    "validation-on-cpu", "best.pt is validated once more on the CPU at the end.", "time at the end", _on_cpu
)

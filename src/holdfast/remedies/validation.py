"""Remedies that reduce the memory of validation, or validate on a trusted device."""

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


def _smaller_batch(context: RemedyContext) -> Remedy | None:
    batch = context.validation_batch
    if batch is None or batch <= 1:
        return None
    smaller = max(1, batch // 4)
    why, costs = "validation keeps the predictions of a whole batch", "slower validation"
    change = context.change("validation.batch", smaller, why=why, costs=costs)
    if change is None:
        return None
    return remedy(
        "validation-batch",
        f"Validating {smaller} images at a time instead of {batch}. Padding can change the last digits of the metrics.",
        change,
        _disable_plots(context),
    )


VALIDATION_BATCH = RemedyStep(
    "validation-batch",
    "Divide the validation batch size by 4 and disable plots. This can be repeated until the batch size is 1. By default, "
    "Ultralytics uses twice the training batch.",
    "slower validation, no Ultralytics plots; padding can change the last digits of the metrics",
    _smaller_batch,
)


def _disable_plots(context: RemedyContext) -> Change | None:
    """Return a change that disables plots, which are drawn during validation. Alone, it would not be worth an attempt."""
    if not context.ultralytics or context.cause == "nms-cut-short":
        return None
    costs = "no Ultralytics plots"
    return context.change("plots", False, why="plots are drawn during validation", costs=costs)


def _fewer_boxes(context: RemedyContext) -> Remedy | None:
    most = context.plan.validation.max_det or context.number("max_det") or 300
    if not context.ultralytics or most <= MAX_BOXES:
        return None
    return remedy(
        "validation-boxes",
        f"Keeping at most {MAX_BOXES} boxes per image in validation instead of {most:g}.",
        context.change(
            "validation.max_det",
            MAX_BOXES,
            why="the boxes of all images are kept until they are scored",
            costs=_CROWDED_COST,
        ),
    )


_CROWDED_COST = "the metrics are too low if images contain more objects than that"
VALIDATION_BOXES = RemedyStep(
    "validation-boxes",
    "Keep at most 100 boxes per image (`max_det`) in validation.",
    _CROWDED_COST,
    _fewer_boxes,
)


def _less_often(context: RemedyContext) -> Remedy | None:
    if not context.ultralytics or context.plan.validation.every >= LESS_OFTEN:
        return None
    return remedy(
        "validation-less-often",
        f"Validating every {LESS_OFTEN} epochs and after the last epoch.",
        context.change(
            "validation.every", LESS_OFTEN, why="memory usage peaks during each validation", costs=_COARSE_COST
        ),
    )


_COARSE_COST = "best.pt is chosen from fewer epochs"
VALIDATION_LESS_OFTEN = RemedyStep(
    "validation-less-often", "Validate every 5 epochs and after the last epoch.", _COARSE_COST, _less_often
)


def _add_condition(remedy_step: RemedyStep, when: str, holds: Callable[[RemedyContext], bool]) -> RemedyStep:
    return replace(
        remedy_step, conditional=when, remedy=lambda context: remedy_step.remedy(context) if holds(context) else None
    )


DIED_IN_VALIDATION = tuple(
    _add_condition(remedy_step, "if the attempt ended during validation", lambda context: context.in_validation)
    for remedy_step in (VALIDATION_BATCH, VALIDATION_BOXES, VALIDATION_LESS_OFTEN)
)
PEAK_IN_VALIDATION = _add_condition(
    VALIDATION_BATCH,
    "if validation used more memory than training",
    lambda context: context.validation_is_peak and context.plan.validation.batch is None,
)


def _on_cpu(context: RemedyContext) -> Remedy | None:
    if not context.ultralytics:
        return None
    return remedy(
        "validation-on-cpu",
        "Validating best.pt once more on the CPU at the end: rely on these metrics.",
        context.change(
            "validation.on_cpu",
            "always",
            why="two validations of the same checkpoint disagree",
            costs="time at the end of the run",
        ),
    )


VALIDATION_ON_CPU = RemedyStep(
    "validation-on-cpu", "Validate best.pt once more on the CPU at the end.", "time at the end of the run", _on_cpu
)

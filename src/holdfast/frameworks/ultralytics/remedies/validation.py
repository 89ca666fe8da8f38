"""Remedies that reduce the memory of validation, or validate on a trusted device."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from holdfast.remedies.step import Remedy, RemedyStep, remedy
from holdfast.remedies.validation import validate_smaller_batches

if TYPE_CHECKING:
    from holdfast.remedies.context import RemedyContext

MAX_BOXES = 100
LESS_OFTEN = 5


def _smaller_batch(context: RemedyContext) -> Remedy | None:
    """Also disable plots, which are drawn during validation. Alone, that would not be worth an attempt."""
    smaller = validate_smaller_batches(context)
    if smaller is None or context.cause == "nms-cut-short":
        return smaller
    plots = context.change("plots", False, why="plots are drawn during validation", costs="no Ultralytics plots")
    return replace(smaller, changes=[*smaller.changes, *([plots] if plots is not None else [])])


VALIDATION_BATCH = RemedyStep(
    "validation-batch",
    "With Ultralytics, where it is twice the training batch by default, plots are disabled too.",
    "no Ultralytics plots",
    _smaller_batch,
    framework="ultralytics",
)


def _fewer_boxes(context: RemedyContext) -> Remedy | None:
    most = context.plan.validation.max_det or context.number("max_det") or 300
    if most <= MAX_BOXES:
        return None
    return remedy(
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
    framework="ultralytics",
)


def _less_often(context: RemedyContext) -> Remedy | None:
    if context.plan.validation.every >= LESS_OFTEN:
        return None
    return remedy(
        f"Validating every {LESS_OFTEN} epochs and after the last epoch.",
        context.change(
            "validation.every", LESS_OFTEN, why="memory usage peaks during each validation", costs=_COARSE_COST
        ),
    )


_COARSE_COST = "best.pt is chosen from fewer epochs"
VALIDATION_LESS_OFTEN = RemedyStep(
    "validation-less-often",
    "Validate every 5 epochs and after the last epoch.",
    _COARSE_COST,
    _less_often,
    framework="ultralytics",
)


def _on_cpu(context: RemedyContext) -> Remedy | None:
    return remedy(
        "Validating best.pt once more on the CPU at the end: rely on these metrics.",
        context.change(
            "validation.on_cpu",
            "always",
            why="two validations of the same checkpoint disagree",
            costs="time at the end of the run",
        ),
    )


VALIDATION_ON_CPU = RemedyStep(
    "validation-on-cpu",
    "Validate best.pt once more on the CPU at the end.",
    "time at the end of the run",
    _on_cpu,
    framework="ultralytics",
)

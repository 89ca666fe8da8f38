"""Remedies that reduce the memory of validation."""

from __future__ import annotations

from typing import TYPE_CHECKING

from holdfast.remedies.step import Remedy, RemedyStep, remedy

if TYPE_CHECKING:
    from holdfast.remedies.context import RemedyContext


def validate_smaller_batches(context: RemedyContext) -> Remedy | None:
    batch = context.validation_batch
    if batch is None or batch <= 1:
        return None
    smaller = max(1, batch // 4)
    why, costs = "validation keeps the predictions of a whole batch", "slower validation"
    change = context.change("validation.batch", smaller, why=why, costs=costs)
    if change is None:
        return None
    return remedy(
        f"Validating {smaller} images at a time instead of {batch}. Padding can change the last digits of the metrics.",
        change,
    )


VALIDATION_BATCH = RemedyStep(
    "validation-batch",
    "Divide the validation batch size by 4. This can be repeated until the batch size is 1.",
    "slower validation; padding can change the last digits of the metrics",
    validate_smaller_batches,
)

"""Remedies that change the learning rate. They are used only if necessary, and always reported."""

from __future__ import annotations

from typing import TYPE_CHECKING

from holdfast.remedies.step import Remedy, all_or_nothing, remedy_step

if TYPE_CHECKING:
    from holdfast.remedies.context import RemedyContext
    from holdfast.schema.verdicts import Change

MAX_HALVINGS = 3
"""If an eighth of the learning rate does not help, the learning rate is not the reason."""


def scale_rate(context: RemedyContext, factor: float) -> tuple[list[Change | None], str]:
    """Return the changes that scale the learning rate with the effective batch, if it is known, and a sentence about them."""
    why = f"in proportion to the effective batch: x {factor:.4g}"
    found = change_rate(context, factor, why=why, costs="the results differ")
    if found is None:
        return [], "The learning rate is unknown and stays the same: adjust it to the smaller batch if you can."
    changes, before, after = found
    return changes, f"The learning rate is scaled with it, from {before:g} to {after:g}."


def change_rate(
    context: RemedyContext, factor: float, *, why: str, costs: str
) -> tuple[list[Change | None], float, float] | None:
    """Return the changes that multiply the learning rate by `factor`, and the rate before and after."""
    rate, fixed = context.framework.learning_rate(context)
    if not rate:
        return None
    # This rounding is far too small to affect the result, and the result is easier to read on a command line.
    after = float(f"{rate * factor:.6g}")
    return [*fixed, context.change("lr0", after, why=why, costs=costs)], rate, after


@remedy_step("the results differ: the model learns more slowly")
def half_rate(context: RemedyContext) -> Remedy | None:
    """Halve the learning rate. This can be repeated, at most three times for a finding. If the framework chooses the optimizer
    itself (`optimizer=auto`) and ignores the learning rate that is set, the optimizer that it chose is set explicitly as well.
    """
    halved = [tried for tried in context.tried if tried.cause == context.cause and context.sets("lr0", tried.changes)]
    why, costs = (
        "a learning rate that is too high is the usual reason",
        "the results differ: the model learns more slowly",
    )
    found = change_rate(context, 0.5, why=why, costs=costs)
    if found is None or len(halved) >= MAX_HALVINGS:
        return None
    changes, before, after = found
    return all_or_nothing(
        f"Halving the learning rate from {before:g} to {after:g}: this differs from what you configured.", *changes
    )

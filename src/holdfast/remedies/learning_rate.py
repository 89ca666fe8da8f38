"""Changes of the learning rate. They are made only if necessary, and always reported."""

from __future__ import annotations

from typing import TYPE_CHECKING

from holdfast.schema.ultralytics_settings import SETTINGS

if TYPE_CHECKING:
    from holdfast.remedies.context import RemedyContext
    from holdfast.schema.verdicts import Change

_AUTO = {"momentum": 0.9, "warmup_bias_lr": 0.0}
"""The values that Ultralytics uses when it chooses the optimizer itself."""


def scale_rate(context: RemedyContext, factor: float) -> tuple[list[Change | None], str]:
    """Scale the learning rate in proportion to the effective batch. Return the changes, and a sentence that reports them.

    If the learning rate is unknown, there are no changes.
    """
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
    fixed: list[Change | None] = []
    rate = context.number("lr0")
    if context.ultralytics and str(context.settings.get("optimizer") or "auto").lower() == "auto":
        # With optimizer=auto, Ultralytics ignores lr0. Set the chosen values explicitly, if they were observed.
        if context.optimizer not in SETTINGS["optimizer"].choices or not context.rate:
            return None
        rate = context.rate
        reason = "with optimizer=auto, Ultralytics ignores lr0: the optimizer that it chose is set explicitly"
        fixed = [context.change("optimizer", context.optimizer, why=reason)]
        fixed += [change for name, value in _AUTO.items() if (change := context.change(name, value, why=reason))]
    if not rate:
        return None
    # This rounding is far too small to affect the result, and the result is easier to read on a command line.
    after = float(f"{rate * factor:.6g}")
    return [*fixed, context.change("lr0", after, why=why, costs=costs)], rate, after

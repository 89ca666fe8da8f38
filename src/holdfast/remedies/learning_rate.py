"""The learning rate, changed where it must be, and always said."""

from __future__ import annotations

from typing import TYPE_CHECKING

from holdfast.schema.ultralytics_settings import SETTINGS

if TYPE_CHECKING:
    from holdfast.remedies.context import RemedyContext
    from holdfast.schema.verdicts import Change

_AUTO = {"momentum": 0.9, "warmup_bias_lr": 0.0}
"""What Ultralytics takes where it chooses the optimizer itself."""


def scaled_rate(now: RemedyContext, factor: float) -> tuple[list[Change | None], str]:
    """The learning rate in proportion to the effective batch, and a sentence that says so. No change where it is not known."""
    why = f"in proportion to the effective batch: x {factor:.4g}"
    found = changed_rate(now, factor, why=why, costs="another path of training")
    if found is None:
        return [], "The learning rate is not known, and stays as it is: set it for the smaller batch if you can."
    changes, before, after = found
    return changes, f"The learning rate is scaled with it, from {before:g} to {after:g}."


def changed_rate(
    now: RemedyContext, factor: float, *, why: str, costs: str
) -> tuple[list[Change | None], float, float] | None:
    """What makes the learning rate so many times what it was, with that rate before and after."""
    fixed: list[Change | None] = []
    rate = now.number("lr0")
    if now.ultralytics and str(now.settings.get("optimizer") or "auto").lower() == "auto":
        # Under auto lr0 is ignored: what it chose is set by hand, as far as it was seen.
        if now.optimizer not in SETTINGS["optimizer"].choices or not now.rate:
            return None
        rate = now.rate
        because = "optimizer=auto would ignore lr0: what it chose is named"
        fixed = [now.change("optimizer", now.optimizer, why=because)]
        fixed += [change for name, value in _AUTO.items() if (change := now.change(name, value, why=because))]
    if not rate:
        return None
    # What is rounded here is far below what any training notices, and reads better on a command line.
    after = float(f"{rate * factor:.6g}")
    return [*fixed, now.change("lr0", after, why=why, costs=costs)], rate, after

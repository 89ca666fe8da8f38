"""Remedies for values that are not finite, and for wrong results of certain versions."""

from __future__ import annotations

from typing import TYPE_CHECKING

from holdfast.diagnosis.versions import KNOWN_FAULTS
from holdfast.remedies.learning_rate import change_rate
from holdfast.remedies.step import Remedy, RemedyStep, all_or_nothing, remedy

if TYPE_CHECKING:
    from holdfast.remedies.context import RemedyContext

_READS_TOO_FAR = next(fault for fault in KNOWN_FAULTS if fault.id == "matmul-reads-too-far")

MAX_HALVINGS = 3
"""If an eighth of the learning rate does not help, the learning rate is not the reason."""


def _full_precision(context: RemedyContext) -> Remedy | None:
    # On a CPU and on MPS, Ultralytics trains in full precision regardless of amp, so switching it off would change nothing.
    if (
        not context.ultralytics
        or context.device in ("cpu", "mps", "")
        or context.settings.get("amp") in (False, "fp32")
    ):
        return None
    return remedy(
        "full-precision",
        "Training in full precision (amp=False): half precision overflows at 65,504. On a CPU and on MPS, Ultralytics always does this.",
        context.change("amp", False, why="half precision may have overflowed", costs="slower, and more memory"),
    )


FULL_PRECISION = RemedyStep(
    "full-precision",
    "Set `amp=False`. This is skipped on a CPU and on MPS, where Ultralytics always trains in full precision.",
    "slower, and more memory",
    _full_precision,
)


def _without_scaler(context: RemedyContext) -> Remedy | None:
    if not context.ultralytics or not any("grad_scaler" in line or "GradScaler" in line for line in context.last_lines):
        return None
    return remedy(
        "without-scaler",
        "Setting amp=False: the gradient scaler created the float64 tensor, and MPS does not need a scaler.",
        context.change("amp", False, why="the gradient scaler creates a float64 tensor"),
    )


WITHOUT_SCALER = RemedyStep(
    "without-scaler",
    "Set `amp=False`, if the traceback mentions a gradient scaler. No setting can fix float64 tensors in your own code.",
    "none: MPS does not need a scaler",
    _without_scaler,
)


def _half_rate(context: RemedyContext) -> Remedy | None:
    halved = [tried for tried in context.tried if tried.cause == context.cause and context.sets("lr0", tried.changes)]
    if len(halved) >= MAX_HALVINGS:
        return None
    found = change_rate(
        context,
        0.5,
        why="a learning rate that is too high is the usual reason",
        costs="the results differ: the model learns more slowly",
    )
    if found is None:
        return None
    changes, before, after = found
    return all_or_nothing(
        "half-rate",
        f"Halving the learning rate from {before:g} to {after:g}: this differs from what you configured.",
        *changes,
    )


HALF_RATE = RemedyStep(
    "half-rate",
    "Halve the learning rate. This can be repeated, at most three times for a finding. With `optimizer=auto`, Ultralytics ignores "
    "`lr0`, so the optimizer that it chose is set explicitly as well.",
    "the results differ: the model learns more slowly",
    _half_rate,
)


def _prefer_metal(context: RemedyContext) -> Remedy | None:
    affected = _READS_TOO_FAR.torch is not None and context.torch in _READS_TOO_FAR.torch
    if context.device != "mps" or not affected:
        return None
    return remedy(
        "prefer-metal",
        f"Setting PYTORCH_MPS_PREFER_METAL=1: {_READS_TOO_FAR.what}.",
        context.change("environment.PYTORCH_MPS_PREFER_METAL", "1", why=_READS_TOO_FAR.what, costs="possibly slower"),
    )


PREFER_METAL = RemedyStep(
    "prefer-metal",
    "On MPS with torch 2.13 or earlier, set `PYTORCH_MPS_PREFER_METAL=1`: in these versions, matrix products read out of bounds on M1 "
    "and M2 (pytorch#177116).",
    "possibly slower",
    _prefer_metal,
)

"""Remedies that turn off mixed precision."""

from __future__ import annotations

from typing import TYPE_CHECKING

from holdfast.remedies.step import Remedy, RemedyStep, remedy

if TYPE_CHECKING:
    from holdfast.remedies.context import RemedyContext


def _full_precision(context: RemedyContext) -> Remedy | None:
    # On a CPU and on MPS, Ultralytics trains in full precision regardless of amp, so switching it off would change nothing.
    if context.device in ("cpu", "mps", "") or context.settings.get("amp") in (False, "fp32"):
        return None
    return remedy(
        "Training in full precision (amp=False): half precision overflows at 65,504. On a CPU and on MPS, Ultralytics always does this.",
        context.change("amp", False, why="half precision may have overflowed", costs="slower, and more memory"),
    )


FULL_PRECISION = RemedyStep(
    "full-precision",
    "Set `amp=False`. This is skipped on a CPU and on MPS, where Ultralytics always trains in full precision.",
    "slower, and more memory",
    _full_precision,
    framework="ultralytics",
)


def _without_scaler(context: RemedyContext) -> Remedy | None:
    if not any("grad_scaler" in line or "GradScaler" in line for line in context.last_lines):
        return None
    return remedy(
        "Setting amp=False: the gradient scaler created the float64 tensor, and MPS does not need a scaler.",
        context.change("amp", False, why="the gradient scaler creates a float64 tensor"),
    )


WITHOUT_SCALER = RemedyStep(
    "without-scaler",
    "Set `amp=False`, if the traceback mentions a gradient scaler. No setting can fix float64 tensors in your own code.",
    "none: MPS does not need a scaler",
    _without_scaler,
    framework="ultralytics",
)

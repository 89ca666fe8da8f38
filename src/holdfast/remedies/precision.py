"""Rungs for numbers that are not finite, and for ones that only some versions get wrong."""

from __future__ import annotations

from typing import TYPE_CHECKING

from holdfast.diagnosis.versions import KNOWN_FAULTS
from holdfast.remedies.learning_rate import changed_rate
from holdfast.remedies.step import Remedy, RemedyStep, remedy, whole_remedy

if TYPE_CHECKING:
    from holdfast.remedies.context import RemedyContext

_READS_TOO_FAR = next(fault for fault in KNOWN_FAULTS if fault.id == "matmul-reads-too-far")

MAX_HALVED = 3
"""After an eighth of the rate it is not the rate."""


def _full_precision(now: RemedyContext) -> Remedy | None:
    # On a CPU and on MPS Ultralytics trains in full precision whatever amp says: to switch it off would change nothing.
    if not now.ultralytics or now.device in ("cpu", "mps", "") or now.settings.get("amp") in (False, "fp32"):
        return None
    return remedy(
        "full-precision",
        "Full precision (amp=False): half precision overflows at 65,504. On a CPU and on MPS it is used anyway.",
        now.change("amp", False, why="half precision may have overflowed", costs="time and memory"),
    )


FULL_PRECISION = RemedyStep(
    "full-precision",
    "`amp=False`, where it does something: Ultralytics trains in full precision on a CPU and on MPS anyway.",
    "time and memory",
    _full_precision,
)


def _without_scaler(now: RemedyContext) -> Remedy | None:
    if not now.ultralytics or not any("grad_scaler" in line or "GradScaler" in line for line in now.last_words):
        return None
    return remedy(
        "without-scaler",
        "amp=False: it was the gradient scaler that made a float64, and MPS needs none.",
        now.change("amp", False, why="the gradient scaler makes a float64"),
    )


WITHOUT_SCALER = RemedyStep(
    "without-scaler",
    "`amp=False`, only where the traceback goes through a gradient scaler. A float64 of the code's own is not mended by any setting.",
    "nothing on MPS",
    _without_scaler,
)


def _half_rate(now: RemedyContext) -> Remedy | None:
    halved = [tried for tried in now.tried if tried.cause == now.cause and now.sets("lr0", tried.changes)]
    if len(halved) >= MAX_HALVED:
        return None
    found = changed_rate(
        now, 0.5, why="a rate that is too high is the usual reason", costs="time: it learns more slowly"
    )
    if found is None:
        return None
    changes, before, after = found
    return whole_remedy(
        "half-rate",
        f"Half the learning rate, {after:g} in place of {before:g}: this is another training than the one that was asked for.",
        *changes,
    )


HALF_RATE = RemedyStep(
    "half-rate",
    "Half the learning rate, three times at most. Where `optimizer=auto` chose it, what it chose is named, since `lr0` would be ignored.",
    "another training: it learns more slowly",
    _half_rate,
)


def _prefer_metal(now: RemedyContext) -> Remedy | None:
    affected = _READS_TOO_FAR.torch is not None and now.torch in _READS_TOO_FAR.torch
    if now.device != "mps" or not affected:
        return None
    return remedy(
        "prefer-metal",
        f"PYTORCH_MPS_PREFER_METAL=1: {_READS_TOO_FAR.what}.",
        now.change("environment.PYTORCH_MPS_PREFER_METAL", "1", why=_READS_TOO_FAR.what, costs="perhaps time"),
    )


PREFER_METAL = RemedyStep(
    "prefer-metal",
    "`PYTORCH_MPS_PREFER_METAL=1` on MPS with torch up to 2.13, whose matrix products read past their end (pytorch#177116).",
    "perhaps time",
    _prefer_metal,
)

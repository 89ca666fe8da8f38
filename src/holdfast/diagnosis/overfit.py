"""The loss when the same batch is repeated: a model that can learn at all memorizes that batch."""

from __future__ import annotations

import math
from dataclasses import dataclass
from statistics import median
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

MIN_COUNT = 8
"""With fewer steps, no conclusion is drawn."""
CLEAR = 0.05
"""As a fraction of the first loss: the smallest fall that counts."""
NOTHING = 1e-6
"""Relative difference up to which two losses are considered equal."""
ALIKE = 0.01
"""As a fraction of the fall: the difference up to which two curves are considered alike."""


@dataclass(frozen=True)
class LossCurve:
    """The shape of one loss curve."""

    first: float
    late: float
    """The median of its last quarter; NaN if any loss was not finite."""
    clear: bool
    constant: bool
    steps: int


def loss_curve(losses: Sequence[float]) -> LossCurve:
    first, last = losses[0], losses[-max(3, len(losses) // 4) :]
    finite = all(math.isfinite(loss) for loss in losses)
    late = median(last) if finite else math.nan
    enough = finite and len(losses) >= MIN_COUNT
    clear = enough and first - late >= CLEAR * abs(first) and max(last) < first
    constant = enough and max(losses) - min(losses) <= NOTHING * abs(first)
    return LossCurve(first, late, clear, constant, len(losses))


def same_curve(one: Sequence[float], other: Sequence[float]) -> str:
    """Compare two curves: "equal", "alike" or "different". Curves of different lengths are compared where they overlap."""
    pairs = list(zip(one, other, strict=False))
    if not all(math.isfinite(a) and math.isfinite(b) for a, b in pairs):
        return "different"
    apart = max(abs(a - b) for a, b in pairs)
    if apart <= NOTHING * max(abs(a) for a, _ in pairs):
        return "equal"
    return "alike" if apart <= ALIKE * (max(one) - min(one)) else "different"

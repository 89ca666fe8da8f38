"""What a loss does when one batch is given again and again: a model that can learn at all learns that batch by heart."""

from __future__ import annotations

import math
from dataclasses import dataclass
from statistics import median
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

MIN_COUNT = 8
"""Steps under which nothing is said."""
CLEAR = 0.05
"""Of the first loss: a fall that counts."""
NOTHING = 1e-6
"""Relative: two losses that are this near are the same."""
ALIKE = 0.01
"""Of the fall: two curves that are this near say the same."""


@dataclass(frozen=True)
class LossCurve:
    """How one curve went."""

    first: float
    late: float
    """The middle of its last quarter; NaN where it was not finite."""
    clear: bool
    constant: bool
    steps: int

    @property
    def fall(self) -> float:
        """Of the first loss; below 0 where it rose."""
        return (self.first - self.late) / abs(self.first) if self.first and math.isfinite(self.late) else 0.0


def loss_curve(losses: Sequence[float]) -> LossCurve:
    first, last = losses[0], losses[-max(3, len(losses) // 4) :]
    finite = all(math.isfinite(loss) for loss in losses)
    late = median(last) if finite else math.nan
    fallen = finite and first - late >= CLEAR * abs(first) and max(last) < first
    constant = finite and max(losses) - min(losses) <= NOTHING * abs(first)
    return LossCurve(
        first, late, fallen and len(losses) >= MIN_COUNT, constant and len(losses) >= MIN_COUNT, len(losses)
    )


def same_curve(one: Sequence[float], other: Sequence[float]) -> str:
    """How alike two curves are: "equal", "alike" or "different". Curves of different lengths are compared where both are."""
    pairs = list(zip(one, other, strict=False))
    if not all(math.isfinite(a) and math.isfinite(b) for a, b in pairs):
        return "different"
    apart = max(abs(a - b) for a, b in pairs)
    if apart <= NOTHING * max(abs(a) for a, _ in pairs):
        return "equal"
    return "alike" if apart <= ALIKE * (max(one) - min(one)) else "different"

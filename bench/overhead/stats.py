"""Medians with distribution-free confidence intervals."""

from __future__ import annotations

import math
import statistics
from dataclasses import dataclass


@dataclass(frozen=True)
class Figure:
    median: float
    low: float
    high: float
    confidence: float
    """Probability that low..high contains the true median; below 0.95 if there are too few values."""
    count: int


def figure(values: list[float]) -> Figure:
    """Return the median and the narrowest order statistics that contain it with 95% confidence, else all values."""
    ordered = sorted(values)
    n = len(ordered)
    below = 0  # number of values left out at each end
    while below < (n - 1) // 2 and _confidence(n, below + 1) >= 0.95:
        below += 1
    return Figure(statistics.median(ordered), ordered[below], ordered[n - 1 - below], _confidence(n, below), n)


def _confidence(n: int, left_out: int) -> float:
    return 1 - 2 * sum(math.comb(n, k) for k in range(left_out + 1)) / 2**n

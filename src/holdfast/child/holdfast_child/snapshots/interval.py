"""How often a snapshot is worth its cost.

Young's and Daly's rule: where a snapshot costs c seconds and the training dies every m seconds, one every sqrt(2 c m) loses the
least. Bounded from above by how much work may be lost, and from below by what may be spent.
"""

import math

MOST_LOST_SECONDS = 120.0
BUDGET = 0.01
LIFE_SECONDS = 4 * 3600.0
"""How long a run lives before anything is known of it."""
BYTES_A_SECOND = 2e9
"""A first guess of how fast a copy is."""


def seconds_between(cost, life, most_lost=None, budget=BUDGET):
    """`most_lost` is the user's own bound: it outweighs the budget. Without one the budget outweighs the usual bound."""
    best = math.sqrt(2.0 * max(cost, 1e-6) * life)
    if most_lost is not None:
        return min(best, most_lost)
    return max(cost / budget, min(best, MOST_LOST_SECONDS))

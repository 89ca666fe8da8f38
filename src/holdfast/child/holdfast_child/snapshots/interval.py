"""How often a snapshot is worth its cost.

Young's and Daly's rule: where a snapshot costs c seconds and the training dies every m seconds, one every sqrt(2 c m) loses the
least. Bounded from above by how much work may be lost, and from below by what may be spent.

How long a life will be is not known beforehand. What has lived for an hour may be expected to live for another; so the older a training
gets, the fewer snapshots it needs, and most are taken when it is young and nothing is known of it.
"""

import math

MOST_LOST_SECONDS = 120.0
BUDGET = 0.01
WRITING = 0.05
"""The part of the time in which one may be written, beside the training: disks wear, and processors are shared."""
LIFE_SECONDS = 60.0
"""How long a run is expected to live before anything is known of it."""
LONGEST_LIFE_SECONDS = 4 * 3600.0
BYTES_A_SECOND = 2e9
"""A first guess of how fast a copy is."""


def expected_life(known, age):
    """`known` is how long its lives were before; `age` how long this one has been."""
    return min(LONGEST_LIFE_SECONDS, max(known, age))


def seconds_between(cost, life, most_lost=None, budget=BUDGET, writing=0.0):
    """`writing` is how long one takes to write. `most_lost` is the user's own bound: it outweighs all that may be spent. Without one, what
    may be spent outweighs the usual bound.
    """
    best = math.sqrt(2.0 * max(cost, 1e-6) * life)
    if most_lost is not None:
        return min(best, most_lost)
    return max(cost / budget, writing / WRITING, min(best, MOST_LOST_SECONDS))

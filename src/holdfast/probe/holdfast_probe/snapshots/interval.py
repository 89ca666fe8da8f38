"""How often a snapshot is worth its cost.

Young's and Daly's rule: where a snapshot costs c seconds and the training dies every m seconds, one every sqrt(2 c m) loses the
least. Bounded from above by how much work may be lost, and from below by what may be spent.

How long a life will be is not known beforehand. What has lived for an hour may be expected to live for another; so the older a training
gets, the fewer snapshots it needs, and most are taken when it is young and nothing is known of it.
"""

import math

MAX_LOST_SECONDS = 120.0
BUDGET = 0.01
LOAN_SECONDS = 0.25
"""What a life may spend before it has earned it: it is when a training is young that it dies most. Where a run has died before, its
next life may spend what the rule says for one of that length: the budget is for those that live.
"""
WRITING = 0.2
"""The part of the time in which one may be written."""
BESIDE = 0.1
"""What a second of writing counts for, of one in which the training waits: disks wear, and processors are shared. Measured, with a core to spare
and YOLO11n: less than that.
"""
LIFE_SECONDS = 60.0
"""How long a run is expected to live before anything is known of it."""
MAX_LIFE_SECONDS = 4 * 3600.0


def expected_attempt_seconds(known, age):
    """`known` is how long its lives were before; `age` how long this one has been."""
    return min(MAX_LIFE_SECONDS, max(known, age))


def seconds_between(cost, life, most_lost=None, writing=0.0):
    """`cost` is how long the training waits for one, `writing` how long it then takes to write. `most_lost` is the user's own bound: it
    outweighs what writing may take.
    """
    best = math.sqrt(2.0 * max(cost + BESIDE * writing, 1e-6) * life)
    if most_lost is not None:
        return min(best, most_lost)
    return max(writing / WRITING, min(best, MAX_LOST_SECONDS))


def loan_for(cost, known):
    """`known` is how long the lives were that this run has had; None where this is the first."""
    return LOAN_SECONDS if known is None else max(LOAN_SECONDS, math.sqrt(0.5 * cost * known))


def seconds_until_earned(cost, spent, age, budget=BUDGET, loan=LOAN_SECONDS):
    """How long it takes until one more may be afforded by a life of this age that has spent this much on them."""
    return (spent + cost - loan) / budget - age

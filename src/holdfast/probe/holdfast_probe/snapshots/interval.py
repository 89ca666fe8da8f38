"""How often a snapshot is worth its cost.

The Young/Daly rule: if a snapshot costs c seconds and the training crashes every m seconds, one snapshot every
sqrt(2 c m) seconds loses the least. The interval is bounded from above by how much work may be lost, and from below by
the budget.

How long an attempt will last is unknown. An attempt that has lasted for an hour can be expected to last for another. So
an older training needs fewer snapshots, and most are taken early, when nothing is known about it.
"""

import math

MAX_LOST_SECONDS = 120.0
BUDGET = 0.01
LOAN_SECONDS = 0.25
"""What an attempt may spend in advance: trainings crash most often early. After a crash, the next attempt may spend
what the rule gives for an attempt of that length: the budget is meant for those that last.
"""
MAX_WRITE_FRACTION = 0.2
"""The maximum fraction of the time that may be spent writing."""
WRITE_COST_FACTOR = 0.1
"""The cost of a second of writing, relative to a second in which the training waits: disks wear, and processors are
shared. Measured with a spare core and YOLO11n: less than that.
"""
DEFAULT_ATTEMPT_SECONDS = 60.0
"""How long the first attempt is expected to last."""
MAX_ATTEMPT_SECONDS = 4 * 3600.0


def expected_attempt_seconds(earlier_seconds, age):
    """Return how long this attempt will last. `earlier_seconds` is how long earlier attempts lasted, `age` the age of
    this one.
    """
    return min(MAX_ATTEMPT_SECONDS, max(earlier_seconds, age))


def seconds_between(cost, attempt_seconds, max_lost_seconds=None, write_seconds=0.0):
    """Return the interval between snapshots. `cost` is how long the training waits for a snapshot, `write_seconds` how
    long writing it takes. `max_lost_seconds` is the user's own limit: it takes precedence over the limit on writing.
    """
    best = math.sqrt(2.0 * max(cost + WRITE_COST_FACTOR * write_seconds, 1e-6) * attempt_seconds)
    if max_lost_seconds is not None:
        return min(best, max_lost_seconds)
    return max(write_seconds / MAX_WRITE_FRACTION, min(best, MAX_LOST_SECONDS))


def compute_loan(cost, earlier_seconds):
    """Return what may be spent in advance. `earlier_seconds` is how long earlier attempts lasted; None for the first
    attempt.
    """
    return LOAN_SECONDS if earlier_seconds is None else max(LOAN_SECONDS, math.sqrt(0.5 * cost * earlier_seconds))


def seconds_until_affordable(cost, spent, age, budget=BUDGET, loan=LOAN_SECONDS):
    """Return how long until an attempt of this age, which has spent this much, can afford one more snapshot."""
    return (spent + cost - loan) / budget - age

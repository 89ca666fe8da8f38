"""How much time the probe may use, and how much it has used.

Every step earns a share of its own duration. The base cost (counting steps, reading losses) is paid first; inspectors
get the rest. They always get a minimum, so that even a training with very short steps is inspected occasionally. A loan
at the start lets inspectors see every parameter in the first steps.
"""

import time

SHARE = 0.0025
"""The probe's share of step time, as measured by itself. Its effect on the caches costs several times as much."""
MIN_INSPECTION_SHARE = 0.001
"""The share that inspectors get if the base cost alone exceeds the budget."""
LOAN_SECONDS = 0.030
SAVED_UP_STEPS = 25
"""Unused credit is kept for this many steps, to save up for one expensive inspection."""
REVIEW_STEPS = 512
FAST_PATH_COST = 0.5
"""The cost of a step on the fast path (fast_path.py) as a fraction of a step on the full path."""


class Budget(object):
    def __init__(self, note):
        self.credit = LOAN_SECONDS
        self.base = 0.0
        """Base cost since the last step, in seconds. The hooks add to it."""
        self.total = 0.0
        """Total cost so far."""
        self.step_seconds = 0.0
        """The typical duration of a step, as a moving average."""
        self._note = note
        self._level = 0
        self._costs = {}
        self._limit = LOAN_SECONDS
        self._in_inspection = False
        self._steps = self._requests = self._refusals = 0
        self._base_seconds = self._reviewed_seconds = 0.0

    def allows(self, cost_estimate_seconds):
        """Return True if an inspection that takes about this long may run now. An inspection that costs more than can
        ever be saved may run once the savings are full. It is paid back before anything else may run.
        """
        self._requests += 1
        if self.credit >= cost_estimate_seconds or self.credit >= self._limit:
            return True
        self._refusals += 1
        return False

    def expected(self, name):
        """Return what `name` costs, estimated from earlier runs; 0.0 if it never ran."""
        return self._costs.get(name, 0.0)

    def spending(self, name):
        """Return a context manager that measures its duration, stores it under `name` and charges it to the budget."""
        return Spending(self.add_cost, name)

    def begin_inspection(self):
        self._in_inspection = True
        return time.monotonic()

    def end_inspection(self, began):
        """Charge all inspectors that ran at once together, so that what they measure inside is not charged twice."""
        self._in_inspection = False
        self._pay(time.monotonic() - began)

    def step(self, seconds, fast_steps=0, fast_seconds=0.0):
        """Add the credit that a step of the primary optimizer earned. The steps before it that took the fast path earn
        credit too; they did not measure their own cost.
        """
        base, self.base = self.base, 0.0
        if fast_steps:
            seconds = (seconds + fast_seconds) / (fast_steps + 1)
            for _ in range(fast_steps):
                self._earn(seconds, FAST_PATH_COST * base)
        self._earn(seconds, base)

    def _earn(self, seconds, base):
        self._base_seconds += base
        earned = SHARE * seconds - base
        minimum = MIN_INSPECTION_SHARE * seconds
        credit = self.credit + (earned if earned > minimum else minimum)
        self.credit = credit if credit < self._limit else self._limit
        typical = self.step_seconds
        self.step_seconds = typical + 0.1 * (seconds - typical) if typical else seconds
        self._reviewed_seconds += seconds
        self._steps += 1
        if not self._steps & 15:
            self._limit = max(LOAN_SECONDS, SAVED_UP_STEPS * SHARE * self.step_seconds)
        if self._steps >= REVIEW_STEPS:
            self._review()

    def add_cost(self, name, seconds):
        before = self._costs.get(name)
        self._costs[name] = seconds if before is None else 0.7 * before + 0.3 * seconds
        if not self._in_inspection:
            self._pay(seconds)

    def _pay(self, seconds):
        self.total += seconds
        self.credit -= seconds

    def _review(self):
        self.total += self._base_seconds
        base_share = self._base_seconds / self._reviewed_seconds if self._reviewed_seconds else 0.0
        level = 2 if base_share > SHARE else (1 if self._refusals * 2 > self._requests else 0)
        if level > self._level:
            self._level = level
            if level == 2:
                self._note(
                    "steps are so short that tensors are rarely inspected",
                    "counting alone takes %.1f%% of a step of %.2f ms" % (100 * base_share, 1e3 * self.step_seconds),
                )
            else:
                self._note(
                    "tensors are inspected in some steps only", "the probe keeps to %g%% of step time" % (100 * SHARE)
                )
        self._steps = self._requests = self._refusals = 0
        self._base_seconds = self._reviewed_seconds = 0.0


class Spending(object):
    """Calls `add_cost(name, seconds)` at the end of a `with` block."""

    __slots__ = ("_add_cost", "_began", "_name")

    def __init__(self, add_cost, name):
        self._add_cost = add_cost
        self._name = name

    def __enter__(self):
        self._began = time.monotonic()
        return self

    def __exit__(self, *_):
        self._add_cost(self._name, time.monotonic() - self._began)
        return False

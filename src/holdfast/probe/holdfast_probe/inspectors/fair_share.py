"""Fair sharing of the budget: a cheap, frequent inspector must not starve an expensive one."""

import time

from ..budget import Spending
from .rate_limit import RunningMedian

OVERDUE_SECONDS = 20.0
OVERDUE_TIMES_COST = 1000.0


class FairShare(object):
    def __init__(self, probe, names):
        self._probe = probe
        self._spent = dict.fromkeys(names, 0.0)
        self._last_run = dict.fromkeys(names, time.monotonic())
        self._costs = {name: RunningMedian() for name in names}

    def allows(self, name, cost):
        """Return whether an inspector may run. The one that has spent the least only needs its own cost; any other must
        leave enough budget for that one.
        """
        if self._spent[name] > min(self._spent.values()):
            cost += self.next_cost()
        return self._probe.budget.allows(cost) or self._is_overdue(name, cost)

    def _is_overdue(self, name, cost):
        """Let an inspector run now and then even if a loaded machine keeps the budget overdrawn."""
        now = time.monotonic()
        if now - self._last_run[name] < max(OVERDUE_SECONDS, cost * OVERDUE_TIMES_COST):
            return False
        self._last_run[name] = now
        return True

    def typical_cost(self, name):
        """Return the usual cost of one run, or 0.0 if the inspector never ran."""
        return self._costs[name].value or 0.0

    def next_cost(self):
        """Return the cost of the inspector whose turn is next."""
        return self.typical_cost(min(self._spent, key=self._spent.get))

    def spending(self, name):
        """Return a context manager like `Budget.spending`, which also counts the cost here."""
        return Spending(self._add_cost, name)

    def _add_cost(self, name, seconds):
        self._probe.budget.add_cost(name, seconds)
        self.record_cost(name, seconds)

    def record_cost(self, name, seconds):
        self._spent[name] += seconds
        self._costs[name].add(seconds)
        self._last_run[name] = time.monotonic()

"""Fair sharing of the budget: a cheap, frequent inspector must not starve an expensive one."""

import time

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
        least_spent = min(self._spent, key=self._spent.get)
        if self._spent[name] > self._spent[least_spent]:
            cost += self.typical_cost(least_spent)
        return self._probe.budget.allows(cost) or self._is_overdue(name, cost)

    def _is_overdue(self, name, cost):
        """On a loaded machine the budget can stay overdrawn. Each inspector may still run now and then, so rarely that the
        cost is negligible.
        """
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
        return _Spending(self, self._probe.budget.spending(name), name)

    def record_cost(self, name, seconds):
        self._spent[name] += seconds
        self._costs[name].add(seconds)
        self._last_run[name] = time.monotonic()


class _Spending(object):
    def __init__(self, fair_share, budget_spending, name):
        self._fair_share = fair_share
        self._budget_spending = budget_spending
        self._name = name

    def __enter__(self):
        self._began = time.perf_counter()
        self._budget_spending.__enter__()
        return self

    def __exit__(self, *error):
        self._budget_spending.__exit__(*error)
        self._fair_share.record_cost(self._name, time.perf_counter() - self._began)
        return False

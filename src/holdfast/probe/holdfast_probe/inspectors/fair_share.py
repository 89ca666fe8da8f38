"""Looks that could each use up the whole budget take turns, so that a cheap and frequent one never starves a dear one."""

import time

from .rate_limit import RunningMean

OVERDUE_SECONDS = 20.0
OVERDUE_TIMES_COST = 1000.0


class FairShare(object):
    def __init__(self, probe, names):
        self._probe = probe
        self._spent = dict.fromkeys(names, 0.0)
        self._gone_at = dict.fromkeys(names, time.monotonic())
        self._costs = {name: RunningMean() for name in names}

    def allows(self, name, cost):
        """Whoever has spent the least may go when it can be paid; another must leave enough for that one."""
        poorest = min(self._spent, key=self._spent.get)
        if self._spent[name] > self._spent[poorest]:
            cost += self.typical(poorest)
        return self._probe.budget.allows(cost) or self._is_overdue(name, cost)

    def _is_overdue(self, name, cost):
        """Debts of a loaded machine must not blind a run: now and then each may go, so rarely that it costs next to nothing."""
        now = time.monotonic()
        if now - self._gone_at[name] < max(OVERDUE_SECONDS, cost * OVERDUE_TIMES_COST):
            return False
        self._gone_at[name] = now
        return True

    def typical(self, name):
        """What it usually costs; 0.0 when it never ran."""
        return self._costs[name].value or 0.0

    def least(self):
        """What the next one in turn needs."""
        return self.typical(min(self._spent, key=self._spent.get))

    def spending(self, name):
        return _Spending(self, self._probe.budget.spending(name), name)

    def paid(self, name, seconds):
        self._spent[name] += seconds
        self._costs[name].add(seconds)
        self._gone_at[name] = time.monotonic()


class _Spending(object):
    def __init__(self, turns, within, name):
        self._turns = turns
        self._within = within
        self._name = name

    def __enter__(self):
        self._began = time.perf_counter()
        self._within.__enter__()
        return self

    def __exit__(self, *error):
        self._within.__exit__(*error)
        self._turns.paid(self._name, time.perf_counter() - self._began)
        return False

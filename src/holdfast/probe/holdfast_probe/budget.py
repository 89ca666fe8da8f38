"""What the probe may cost, and what it has cost.

Every step earns a share of its own duration. The base (counting steps, reading losses) is paid first; looks live on the
rest, and always get a little, so that even a training of very short steps is looked at now and then. A loan at the start
lets looks see every parameter in the first steps.
"""

import time

SHARE = 0.0025
"""The probe's share of step time, by its own clock. What it does to the caches costs the training several times as much."""
MIN_LOOKS = 0.001
"""The share that looks get when the base alone takes more than the whole."""
LOAN_SECONDS = 0.030
SAVED_UP_STEPS = 25
"""Unused credit is kept for this many steps, so that one dear look can be saved up for."""
REVIEW_STEPS = 512
QUICK_PART = 0.5
"""What a step that goes the short way (quick.py) costs, of what one costs that goes the long way."""


class Budget(object):
    def __init__(self, note):
        self.credit = LOAN_SECONDS
        self.base = 0.0
        """What the base has cost since the last step, in seconds: added to by the hooks themselves."""
        self.total = 0.0
        """What everything has cost so far."""
        self.step_seconds = 0.0
        """The typical duration of a step, as a moving mean."""
        self._note = note
        self._level = 0
        self._costs = {}
        self._limit = LOAN_SECONDS
        self._in_looks = False
        self._steps = self._asked = self._refused = 0
        self._base_seconds = self._reviewed_seconds = 0.0

    def allows(self, cost_estimate_seconds):
        """Whether a look that costs about this much may run now. What costs more than can ever be saved up may run once
        the savings are full; it is paid back before anything else may run.
        """
        self._asked += 1
        if self.credit >= cost_estimate_seconds or self.credit >= self._limit:
            return True
        self._refused += 1
        return False

    def expected(self, name):
        """What `name` costs, from the times before; 0.0 when it never ran."""
        return self._costs.get(name, 0.0)

    def spending(self, name):
        """A context: its duration is remembered under `name` and paid for."""
        return _Spending(self, name)

    def inspection_begins(self):
        self._in_looks = True
        return time.monotonic()

    def inspection_ended(self, began):
        """All looks of one moment ran: one payment for all, so that what they measure inside is not paid twice."""
        self._in_looks = False
        self._pay(time.monotonic() - began)

    def step(self, seconds, quick_steps=0, quick_seconds=0.0):
        """A step of the clock took this long: it earns. So do those before it that went the short way, and did not take the time of
        what they cost.
        """
        base, self.base = self.base, 0.0
        if quick_steps:
            seconds = (seconds + quick_seconds) / (quick_steps + 1)
            for _ in range(quick_steps):
                self._earn(seconds, QUICK_PART * base)
        self._earn(seconds, base)

    def _earn(self, seconds, base):
        self._base_seconds += base
        earned = SHARE * seconds - base
        least = MIN_LOOKS * seconds
        credit = self.credit + (earned if earned > least else least)
        self.credit = credit if credit < self._limit else self._limit
        typical = self.step_seconds
        self.step_seconds = typical + 0.1 * (seconds - typical) if typical else seconds
        self._reviewed_seconds += seconds
        self._steps += 1
        if not self._steps & 15:
            self._limit = max(LOAN_SECONDS, SAVED_UP_STEPS * SHARE * self.step_seconds)
        if self._steps >= REVIEW_STEPS:
            self._review()

    def remember(self, name, seconds):
        before = self._costs.get(name)
        self._costs[name] = seconds if before is None else 0.7 * before + 0.3 * seconds
        if not self._in_looks:
            self._pay(seconds)

    def _pay(self, seconds):
        self.total += seconds
        self.credit -= seconds

    def _review(self):
        self.total += self._base_seconds
        base_share = self._base_seconds / self._reviewed_seconds if self._reviewed_seconds else 0.0
        level = 2 if base_share > SHARE else (1 if self._refused * 2 > self._asked else 0)
        if level > self._level:
            self._level = level
            if level == 2:
                self._note(
                    "steps are so short that looks at tensors are rare",
                    "counting alone takes %.1f%% of a step of %.2f ms" % (100 * base_share, 1e3 * self.step_seconds),
                )
            else:
                self._note("looks at tensors are sampled", "the probe keeps to %g%% of step time" % (100 * SHARE))
        self._steps = self._asked = self._refused = 0
        self._base_seconds = self._reviewed_seconds = 0.0


class _Spending(object):
    __slots__ = ("_began", "_budget", "_name")

    def __init__(self, budget, name):
        self._budget = budget
        self._name = name

    def __enter__(self):
        self._began = time.monotonic()
        return self

    def __exit__(self, *_):
        self._budget.remember(self._name, time.monotonic() - self._began)
        return False

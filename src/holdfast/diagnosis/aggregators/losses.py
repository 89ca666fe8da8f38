"""Losses and their components, step by step."""

from __future__ import annotations

import statistics
from collections import deque
from typing import NamedTuple

from holdfast.diagnosis.series import Series
from holdfast.schema.events import Step, Steps, WindowStats, as_number

EARLY = 20
"""So many of the first losses stand for what the untrained model makes."""
FAR = 10.0
"""A loss is far off when it is this many times the highest of the first ones."""
LEAP = 5.0
"""A loss has left its start when it is this many times the very first one, which no step has touched yet."""
RECENT = 128


class Recent(NamedTuple):
    """One of the newest losses, or a window of them."""

    step: int
    n: int
    mean: float


class Losses:
    def __init__(self) -> None:
        self.whole = Series()
        self.parts: dict[str, Series] = {}
        """Loss components by name, where an adapter knows them."""
        self.labelled_zeros_at_first: dict[str, int] = {}
        """Of each component, how many steps it was exactly zero before it was anything else. Steps whose batch is known to
        hold no object do not count: a component may rightly be zero there."""
        self.objects: int | None = None
        """Labelled objects so far, where an adapter counts them."""
        self.early: list[float] = []
        """The first finite losses."""
        self.recent: deque[Recent] = deque(maxlen=RECENT)
        """The newest finite ones."""
        self.far_steps = 0
        """Steps in a row, up to the newest, whose losses are all far above the first ones."""
        self.left_steps = 0
        """Steps in a row, up to the newest, whose losses are all above the very first one by LEAP; and how many losses
        had come when the first of them did."""
        self.left_after = 0
        self.same_at_rate = 0
        """Steps in a row, up to the newest, with exactly the same loss and a learning rate that is not zero."""
        self.others = 0
        """Steps that further optimizers made beside the clock's."""
        self._far = float("inf")

    @property
    def at_first(self) -> float | None:
        """What the untrained model makes: the median of the first losses."""
        return statistics.median(self.early) if self.early else None

    def fold(self, event: Step | Steps) -> None:
        count = self.whole.count
        same = self.whole.same_in_a_row
        add(self.whole, event, event.loss)
        if event.other_steps:
            self.others += sum(event.other_steps.values())
        if event.instances is not None:
            self.objects = (self.objects or 0) + event.instances
        if event.parts:
            self._fold_parts(event)
        if self.whole.count > count and event.loss is not None:
            self._follow(event, event.loss, self.whole.count - count, same)

    def _fold_parts(self, event: Step | Steps) -> None:
        labelled = event.instances != 0
        for name, value in (event.parts or {}).items():
            series = self.parts.get(name)
            if series is None:
                series = self.parts[name] = Series()
            before = series.zeros_at_first
            add(series, event, value)
            if labelled:
                zeros = self.labelled_zeros_at_first.get(name, 0)
                self.labelled_zeros_at_first[name] = zeros + series.zeros_at_first - before

    def _follow(self, event: Step | Steps, loss: float | str | WindowStats, n: int, same: int) -> None:
        if isinstance(loss, WindowStats):
            low, mean = loss.low, loss.mean
        else:
            low = mean = float(loss)
        self.recent.append(Recent(event.step if isinstance(event, Step) else event.last, n, mean))
        rate = n if event.lr and max(event.lr) > 0.0 else 0
        goes_on = self.whole.same_in_a_row == same + n
        self.same_at_rate = self.same_at_rate + rate if goes_on else min(rate, self.whole.same_in_a_row)
        first = self.whole.first
        if first is not None and low > LEAP * first > 0.0:
            self.left_after = self.whole.count - n if not self.left_steps else self.left_after
            self.left_steps += n
        else:
            self.left_steps = 0
        if len(self.early) < EARLY:
            self.early.extend([mean] * min(n, EARLY - len(self.early)))
            highest = max(self.early)
            self._far = FAR * highest if highest > 0.0 else float("inf")
        else:
            self.far_steps = self.far_steps + n if low > self._far else 0


def add(series: Series, event: Step | Steps, value: float | str | WindowStats | None) -> None:
    """One value of a step, or the spread of a window, at its last step."""
    if isinstance(value, WindowStats):
        series.add_spread(event.last if isinstance(event, Steps) else event.step, value)
    else:
        number = as_number(value)
        if number is not None:
            series.add(event.step if isinstance(event, Step) else event.last, number)

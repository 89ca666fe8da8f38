"""Losses, their components, and learning rates, by step."""

from __future__ import annotations

import statistics
from collections import deque
from typing import TYPE_CHECKING, NamedTuple

from holdfast.diagnosis.series import Series, span_of
from holdfast.schema.events import WindowStats

if TYPE_CHECKING:
    from holdfast.schema.events import Schedule, Step, Steps

EARLY = 20
"""Number of first losses that represent the untrained model."""
FAR = 10.0
"""A loss is far off if it is this many times the highest of the first losses."""
LEAP = 5.0
"""A loss has left its start if it is this many times the very first loss, which was computed before any step."""
RECENT = 128
VANISHED = 1e-8
"""As a fraction of its own peak: a rate this small changes nothing that float32 can represent."""


class Recent(NamedTuple):
    """One of the newest losses, or a window of them."""

    step: int
    n: int
    mean: float


class Losses:
    def __init__(self) -> None:
        self.whole = Series()
        self.parts: dict[str, Series] = {}
        """Loss components by name, if a framework knows them."""
        self.labelled_zeros_at_first: dict[str, int] = {}
        """For each component, the number of steps at which it was exactly zero before its first nonzero value. Steps whose
        batch is known to contain no object do not count: a component may correctly be zero there."""
        self.objects: int | None = None
        """Number of labelled objects so far, if a framework counts them."""
        self.early: list[float] = []
        """The first finite losses."""
        self.recent: deque[Recent] = deque(maxlen=RECENT)
        """The newest finite losses."""
        self.far_steps = 0
        """Number of consecutive steps, up to the newest, whose losses are all far above the first losses."""
        self.left_steps = 0
        """Number of consecutive steps, up to the newest, whose losses are all more than LEAP times the very first loss; and
        the number of losses before them."""
        self.left_after = 0
        self.same_at_rate = 0
        """Number of consecutive steps, up to the newest, with exactly the same loss and a nonzero learning rate."""
        self.others = 0
        """Number of steps of other optimizers than the primary optimizer."""
        self._far = float("inf")

    @property
    def at_first(self) -> float | None:
        """The loss of the untrained model: the median of the first losses."""
        return statistics.median(self.early) if self.early else None

    def fold(self, event: Step | Steps) -> None:
        count = self.whole.count
        same = self.whole.same_in_a_row
        self.whole.add_event(event, event.loss)
        if event.other_steps:
            self.others += sum(event.other_steps.values())
        if event.instances is not None:
            self.objects = (self.objects or 0) + event.instances
        if event.parts:
            self._fold_parts(event)
        if self.whole.count > count and event.loss is not None:
            self._fold_loss(event, event.loss, self.whole.count - count, same)

    def _fold_parts(self, event: Step | Steps) -> None:
        labelled = event.instances != 0
        for name, value in (event.parts or {}).items():
            series = self.parts.setdefault(name, Series())
            before = series.zeros_at_first
            series.add_event(event, value)
            if labelled:
                zeros = self.labelled_zeros_at_first.get(name, 0)
                self.labelled_zeros_at_first[name] = zeros + series.zeros_at_first - before

    def _fold_loss(self, event: Step | Steps, loss: float | str | WindowStats, n: int, same: int) -> None:
        low, mean = (loss.low, loss.mean) if isinstance(loss, WindowStats) else (float(loss), float(loss))
        self.recent.append(Recent(span_of(event)[1], n, mean))
        rate = n if event.lr and max(event.lr) > 0.0 else 0
        is_same = self.whole.same_in_a_row == same + n
        self.same_at_rate = self.same_at_rate + rate if is_same else min(rate, self.whole.same_in_a_row)
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


class LearningRates:
    def __init__(self) -> None:
        self.highest = Series()
        """The highest rate of all parameter groups, by step."""
        self.latest: list[float] = []
        self.vanished_steps = 0
        """Number of consecutive steps, up to the newest, whose rate is practically zero compared with the earlier peak; and
        the first of these steps."""
        self.vanished_since: int | None = None
        self.schedules: dict[str, Schedule] = {}

    def fold(self, event: Step | Steps) -> None:
        if not event.lr:
            return
        self.latest = event.lr
        highest = max(event.lr)
        first, last = span_of(event)
        count = last - first + 1
        self.highest.add(last, highest, count)
        if highest > VANISHED * self.highest.highest:
            self.vanished_steps, self.vanished_since = 0, None
        else:
            self.vanished_steps += count
            self.vanished_since = first if self.vanished_since is None else self.vanished_since

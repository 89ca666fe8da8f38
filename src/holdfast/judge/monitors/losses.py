"""Losses and their components, step by step."""

from __future__ import annotations

from holdfast.judge.series import Series
from holdfast.words.events import Spread, Step, Steps, as_number


class Losses:
    def __init__(self) -> None:
        self.whole = Series()
        self.parts: dict[str, Series] = {}
        """Loss components by name, where an adapter knows them."""
        self.labelled_zeros_at_first: dict[str, int] = {}
        """Of each component, how many steps it was exactly zero before it was anything else. Steps whose batch is known to
        hold no object do not count: a component may rightly be zero there."""

    def fold(self, event: Step | Steps) -> None:
        add(self.whole, event, event.loss)
        if event.parts:
            labelled = event.instances != 0
            for name, value in event.parts.items():
                series = self.parts.setdefault(name, Series())
                before = series.zeros_at_first
                add(series, event, value)
                if labelled:
                    zeros = self.labelled_zeros_at_first.get(name, 0)
                    self.labelled_zeros_at_first[name] = zeros + series.zeros_at_first - before


def add(series: Series, event: Step | Steps, value: float | str | Spread | None) -> None:
    """One value of a step, or the spread of a window, at its last step."""
    if isinstance(value, Spread):
        series.add_spread(event.last if isinstance(event, Steps) else event.step, value)
    else:
        number = as_number(value)
        if number is not None:
            series.add(event.step if isinstance(event, Step) else event.last, number)

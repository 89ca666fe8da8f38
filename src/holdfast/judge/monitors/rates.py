"""Learning rates, and what their schedulers were made for."""

from __future__ import annotations

from holdfast.judge.series import Series
from holdfast.words import events


class Rates:
    def __init__(self) -> None:
        self.highest = Series()
        """The highest rate of all parameter groups, by step."""
        self.latest: list[float] = []
        self.schedules: dict[str, events.Schedule] = {}

    def fold(self, event: events.Step | events.Steps) -> None:
        if event.lr:
            self.latest = event.lr
            highest = max(event.lr)
            if isinstance(event, events.Step):
                self.highest.add(event.step, highest)
            else:
                count = event.last - event.first + 1
                zeros = 0 if highest else count
                self.highest.add_many(
                    event.last, n=count, mean=highest, low=highest, high=highest, zeros=zeros, last=highest
                )

    def fold_schedule(self, event: events.Schedule) -> None:
        self.schedules[event.scheduler] = event

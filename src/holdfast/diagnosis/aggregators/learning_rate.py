"""Learning rates, and the number of steps that their schedulers are configured for."""

from __future__ import annotations

from holdfast.diagnosis.series import Series
from holdfast.schema import events

VANISHED = 1e-8
"""As a fraction of its own peak: a rate this small changes nothing that float32 can represent."""


class LearningRates:
    def __init__(self) -> None:
        self.highest = Series()
        """The highest rate of all parameter groups, by step."""
        self.latest: list[float] = []
        self.vanished_steps = 0
        """Number of consecutive steps, up to the newest, whose rate is practically zero compared with the earlier peak; and
        the first of these steps."""
        self.vanished_since: int | None = None
        self.schedules: dict[str, events.Schedule] = {}

    def fold(self, event: events.Step | events.Steps) -> None:
        if not event.lr:
            return
        self.latest = event.lr
        highest = max(event.lr)
        if isinstance(event, events.Step):
            first, count = event.step, 1
            self.highest.add(event.step, highest)
        else:
            first, count = event.first, event.last - event.first + 1
            zeros = 0 if highest else count
            self.highest.add_many(
                event.last, n=count, mean=highest, low=highest, high=highest, zeros=zeros, last=highest
            )
        if highest > VANISHED * self.highest.highest:
            self.vanished_steps, self.vanished_since = 0, None
        else:
            self.vanished_steps += count
            self.vanished_since = first if self.vanished_since is None else self.vanished_since

    def fold_schedule(self, event: events.Schedule) -> None:
        self.schedules[event.scheduler] = event

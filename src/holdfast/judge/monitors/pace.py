"""How long things take: steps, waiting for data, epochs, evaluations, and the machine's sleep between them."""

from __future__ import annotations

from holdfast.judge.series import Series
from holdfast.words import events


class Pace:
    def __init__(self) -> None:
        self.step_seconds = 0.0
        self.data_wait = 0.0
        self.evaluation_seconds = 0.0
        self.slept = 0.0
        self.steps = Series()
        """Seconds a step, by step."""

    def fold(self, event: events.Step | events.Steps) -> None:
        self.step_seconds += event.seconds
        self.data_wait += event.data_wait
        if isinstance(event, events.Step):
            self.steps.add(event.step, event.seconds)
        else:
            count = event.last - event.first + 1
            each = event.seconds / count
            self.steps.add_many(event.last, n=count, mean=each, low=each, high=event.slowest, zeros=0, last=each)

    def fold_evaluation(self, event: events.Evaluation) -> None:
        self.evaluation_seconds += event.seconds

    def fold_slept(self, event: events.Slept) -> None:
        self.slept += event.seconds

    def fold_epoch(self, event: events.Epoch) -> None:
        pass

    def fold_sample(self, event: events.Sample) -> None:
        pass

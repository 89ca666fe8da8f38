"""What validations came to, one after the other."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from holdfast.words.events import as_number

if TYPE_CHECKING:
    from holdfast.words import events

KEPT = 4096


class Point(NamedTuple):
    epoch: int
    """The adapter's epoch, else the number of the validation."""
    value: float


class Metrics:
    def __init__(self) -> None:
        self.history: list[events.Metrics] = []
        """Validations during the training, oldest first."""
        self.final: events.Metrics | None = None
        """One more of the best checkpoint at the end, where the trainer makes it."""

    @property
    def latest(self) -> events.Metrics | None:
        return self.final or (self.history[-1] if self.history else None)

    def fold(self, event: events.Metrics) -> None:
        if event.epoch is None and self.history and self.history[-1].epoch is not None:
            self.final = event
        elif len(self.history) < KEPT:
            self.history.append(event)

    def names(self) -> list[str]:
        return list(self.history[-1].values) if self.history else []

    def scores(self) -> list[str]:
        """Metrics that are better when higher, the one that chooses the best checkpoint first."""
        return sorted(filter(is_score, self.names()), key=_rank)

    def series(self, name: str) -> list[Point]:
        """One metric over the validations that have it."""
        points = []
        for number, event in enumerate(self.history, 1):
            value = as_number(event.values.get(name))
            if value is not None:
                points.append(Point(event.epoch or number, value))
        return points


def is_loss(name: str) -> bool:
    return "loss" in name.lower()


def is_score(name: str) -> bool:
    """A metric that is better when it is higher, as far as its name tells."""
    lowered = name.lower()
    return not is_loss(lowered) and not lowered.startswith(("lr", "train/", "time", "epoch", "speed"))


CHOOSING = ("fitness", "map50-95", "map", "f1", "accuracy", "acc")


def _rank(name: str) -> int:
    return next((rank for rank, word in enumerate(CHOOSING) if word in name.lower()), len(CHOOSING))

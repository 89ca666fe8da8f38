"""Memory: of the process tree, of the system, and of the device as its driver sees it."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from holdfast.words import events

KEPT_SAMPLES = 512


class Memory:
    def __init__(self) -> None:
        self.samples: deque[events.Sample] = deque(maxlen=KEPT_SAMPLES)
        self.least_available: int | None = None
        self.most_rss = 0
        self.device: events.Memory | None = None
        """The newest reading of the device's memory."""

    def fold_sample(self, event: events.Sample, _step: int) -> None:
        self.samples.append(event)
        least = self.least_available
        self.least_available = event.available if least is None else min(least, event.available)
        self.most_rss = max(self.most_rss, event.rss)

    def fold_device(self, event: events.Memory) -> None:
        self.device = event

    def fold_evaluation(self, event: events.Evaluation) -> None:
        pass

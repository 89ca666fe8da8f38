"""Synthetic memory histories of trainings, generated from a few numbers, with a known step of the kill.

The memory of a process is the sum of what it needs, leaks (with every step, or in a jump at the end of each epoch), caches, the
sawtooth of a garbage collector, and the extra memory of validations. It is killed at the first step at which the sum exceeds the
limit. The samples are this sum plus noise, at the intervals of a real attempt: every second, later less often.
"""

from __future__ import annotations

import math
import random
from dataclasses import dataclass, field
from functools import cached_property
from itertools import accumulate
from typing import TYPE_CHECKING

from holdfast.schema import events
from holdfast.testing.histories import started, trains

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

GIB = 1 << 30
MAX_EPOCHS = 1000
POINTS = 200
"""Points per epoch at which the limit is checked."""
DENSE_SAMPLES = 2000
"""As in supervisor/attempt.py: at first a sample every second, later the duration divided by this number."""


@dataclass(frozen=True)
class MemoryHistory:
    """Memory in GiB, times in seconds; `x` counts epochs, with fractions."""

    name: str
    limit: float = 16.0
    base: float = 3.0
    leak: float = 0.0
    """Per epoch, evenly."""
    jump: float = 0.0
    """At the end of each epoch, by its validation."""
    uneven: float = 0.0
    """Relative variation of the jumps."""
    leaks_from: float = 0.0
    """Epochs until the leak starts."""
    cache: Callable[[float], float] = field(default=lambda _x: 0.0)
    noise: float = 0.03
    tooth: float = 0.0
    tooth_epochs: float = 0.37
    spike: float = 0.0
    """Extra memory of a validation."""
    validation_s: float = 0.0
    validated_every: int = 1
    steps: int = 200
    """Per epoch."""
    epoch_s: float = 120.0
    planned: int | None = 100
    epochs_seen: bool = True
    mps: bool = False
    """The driver owns all of the memory except a constant part, and resident memory does not include it."""
    others: float = 0.5
    snapshots: bool = True
    seed: int = 0

    @cached_property
    def jumps(self) -> list[float]:
        """Return the sum of all jumps up to each epoch."""
        rng = random.Random(self.seed)
        each = (self.jump * (1.0 + self.uneven * rng.uniform(-1.0, 1.0)) for _ in range(MAX_EPOCHS))
        return list(accumulate(each, initial=0.0))

    def memory_at(self, x: float) -> float:
        """Return the memory at x while training, without noise."""
        since = max(0.0, x - self.leaks_from)
        tooth = self.tooth * (x / self.tooth_epochs % 1.0)
        return self.base + self.leak * since + self.jumps[int(since)] + self.cache(x) + tooth

    def killed_at(self, longest: int = MAX_EPOCHS) -> int | None:
        """Return the first step at which the limit is exceeded, or None."""
        for epoch in range(longest):
            for place in range(POINTS):
                x = epoch + place / POINTS
                if self.memory_at(x) >= self.limit:
                    return max(1, math.ceil(x * self.steps))
            spike = self.spike if self.is_validated(epoch) else 0.0
            if self.memory_at(epoch + 1 - 1e-9) + spike >= self.limit:
                return (epoch + 1) * self.steps
        return None

    def half_used_epoch(self) -> float:
        """Return the epoch at which half of the memory between the first step and the limit is used."""
        half = 0.5 * (self.base + self.limit)
        return next(x / POINTS for x in range(POINTS * MAX_EPOCHS) if self.memory_at(x / POINTS) >= half)

    def is_validated(self, epoch: int) -> bool:
        return bool(self.validation_s) and (epoch + 1) % self.validated_every == 0

    def events(self, epochs: float) -> Iterator[events.AnyEvent]:
        """Return the events of the given number of epochs."""
        yield from _start_events(self)
        yield from _EventSource(self).epochs(epochs)


def _start_events(history: MemoryHistory) -> Iterator[events.AnyEvent]:
    run, attempt = started()
    yield events.RunStarted(
        **{name: getattr(run, name) for name in run.__struct_fields__}
        | {"memory_total": int((history.limit + history.others) * GIB)}
    )
    yield attempt
    yield from trains()
    if history.snapshots:
        yield events.Coverage(at=0.5, seen={"snapshots": ""}, step_source="optimizer")


class _EventSource:
    def __init__(self, history: MemoryHistory) -> None:
        self.history = history
        self.rng = random.Random(history.seed + 1)
        self.now = 10.0
        self.step = 0

    def epochs(self, epochs: float) -> Iterator[events.AnyEvent]:
        history = self.history
        for epoch in range(math.ceil(epochs)):
            began = self.now
            end = min(1.0, epochs - epoch)
            yield from self.training(epoch, began, end)
            if end < 1.0:
                return
            self.now = began + history.epoch_s
            if history.snapshots:
                yield self.snapshot()
            yield from self.steps_to((epoch + 1) * history.steps)
            if history.epochs_seen:
                yield events.Epoch(
                    at=self.now,
                    epoch=epoch + 1,
                    step=self.step,
                    seconds=history.epoch_s,
                    batches=history.steps,
                    planned=history.planned,
                    source="ultralytics",
                )
            if history.is_validated(epoch):
                yield from self.validation(epoch)

    def snapshot(self) -> events.Snapshot:
        return events.Snapshot(
            at=self.now, step=self.step, position=self.step, path="snapshot", bytes=GIB, stall=0.2, seconds=1.0
        )

    def training(self, epoch: int, began: float, end: float) -> Iterator[events.AnyEvent]:
        history = self.history
        while True:
            self.now += self.between()
            part = (self.now - began) / history.epoch_s
            if part >= end:
                return
            yield from self.steps_to(epoch * history.steps + int(part * history.steps))
            yield from self.sample(history.memory_at(epoch + part))

    def validation(self, epoch: int) -> Iterator[events.AnyEvent]:
        history = self.history
        began = self.now
        level = history.memory_at(epoch + 1 - 1e-9)
        while self.now + 1.0 < began + history.validation_s:
            self.now += self.between()
            part = min(1.0, (self.now - began) / history.validation_s)
            yield from self.sample(level + history.spike * min(1.0, 3.0 * part))
        self.now = max(self.now, began + history.validation_s)
        yield events.Evaluation(at=self.now, step=self.step, seconds=self.now - began, fetches=10)

    def between(self) -> float:
        return max(1.0, self.now / DENSE_SAMPLES) * self.rng.uniform(0.98, 1.05)

    def steps_to(self, step: int) -> Iterator[events.AnyEvent]:
        count, seen = step - self.step, self.history.epochs_seen
        seconds = count * self.history.epoch_s / self.history.steps
        if count == 1:
            yield events.Step(at=self.now, step=step, seconds=seconds, batch=f"{step}" if seen else None)
        elif count > 1:
            fetched = count if seen else 0
            yield events.Steps(
                at=self.now, first=self.step + 1, last=step, seconds=seconds, batches=fetched, different=fetched
            )
        self.step = max(step, self.step)

    def sample(self, used: float) -> Iterator[events.AnyEvent]:
        history = self.history
        used += self.rng.gauss(0.0, history.noise)
        rss = used
        if history.mps:
            rss = 0.4 * history.base
            yield events.Memory(
                at=self.now, step=self.step, device="mps:0", driver=int((used - rss) * GIB), allocated=int(0.1 * GIB)
            )
        yield events.Sample(
            at=self.now,
            rss=int(rss * GIB),
            processes=1,
            available=int(max(0.0, history.limit - used) * GIB),
            swap=0,
            disk_free=100 * GIB,
        )

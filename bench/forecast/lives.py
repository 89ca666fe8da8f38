"""Lives of trainings whose memory grows, made from a few numbers, with the step that kills them known.

What a process holds is what it needs, what leaks (with every step, or in a jump at the end of each epoch), what caches hold, the
teeth of a garbage collector, and a validation's own. It is killed at the first step at which all that together passes the limit.
The samples are that and some noise, taken as an attempt takes them: each second, later less often.
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
MAX_STEPS = 1000
"""Epochs."""
PLACES = 200
"""In so many places of an epoch it is looked whether the limit is passed."""
DENSE_SAMPLES = 2000
"""As supervisor/attempt.py: a sample each second at first, later one for each so many'th part of the life."""


@dataclass(frozen=True)
class Life:
    """Memory in GiB, times in seconds; `x` counts epochs, with fractions."""

    name: str
    limit: float = 16.0
    base: float = 3.0
    leak: float = 0.0
    """An epoch, evenly."""
    jump: float = 0.0
    """At the end of each epoch, by its validation."""
    uneven: float = 0.0
    """How much jumps differ, as a part of them."""
    leaks_from: float = 0.0
    """Epochs until the leak begins."""
    cache: Callable[[float], float] = field(default=lambda _x: 0.0)
    noise: float = 0.03
    tooth: float = 0.0
    tooth_epochs: float = 0.37
    spike: float = 0.0
    """A validation's own."""
    validation_s: float = 0.0
    validated_every: int = 1
    steps: int = 200
    """In an epoch."""
    epoch_s: float = 120.0
    planned: int | None = 100
    epochs_seen: bool = True
    mps: bool = False
    """The driver holds all but a steady part of it, and resident memory does not show that."""
    others: float = 0.5
    snapshots: bool = True
    seed: int = 0

    @cached_property
    def jumps(self) -> list[float]:
        """What all jumps until an epoch add up to."""
        dice = random.Random(self.seed)
        each = (self.jump * (1.0 + self.uneven * dice.uniform(-1.0, 1.0)) for _ in range(MAX_STEPS))
        return list(accumulate(each, initial=0.0))

    def trains_with(self, x: float) -> float:
        """What is held at x while it trains, noise left out."""
        since = max(0.0, x - self.leaks_from)
        tooth = self.tooth * (x / self.tooth_epochs % 1.0)
        return self.base + self.leak * since + self.jumps[int(since)] + self.cache(x) + tooth

    def killed_at(self, longest: int = MAX_STEPS) -> int | None:
        """The first step at which the limit is passed."""
        for epoch in range(longest):
            for place in range(PLACES):
                x = epoch + place / PLACES
                if self.trains_with(x) >= self.limit:
                    return max(1, math.ceil(x * self.steps))
            spike = self.spike if self.is_validated(epoch) else 0.0
            if self.trains_with(epoch + 1 - 1e-9) + spike >= self.limit:
                return (epoch + 1) * self.steps
        return None

    def half_used_at(self) -> float:
        """Where half of what there is between the first step and the limit is used, in epochs."""
        half = 0.5 * (self.base + self.limit)
        return next(x / PLACES for x in range(PLACES * MAX_STEPS) if self.trains_with(x / PLACES) >= half)

    def is_validated(self, epoch: int) -> bool:
        return bool(self.validation_s) and (epoch + 1) % self.validated_every == 0

    def events(self, epochs: float) -> Iterator[events.AnyEvent]:
        """The history of so many epochs."""
        yield from _beginning(self)
        yield from _History(self).epochs(epochs)


def _beginning(life: Life) -> Iterator[events.AnyEvent]:
    run, attempt = started()
    yield events.RunStarted(
        **{name: getattr(run, name) for name in run.__struct_fields__}
        | {"memory_total": int((life.limit + life.others) * GIB)}
    )
    yield attempt
    yield from trains()
    if life.snapshots:
        yield events.Coverage(at=0.5, kinds={"snapshots": "seen"}, step_source="optimizer")


class _History:
    def __init__(self, life: Life) -> None:
        self.life = life
        self.dice = random.Random(life.seed + 1)
        self.now = 10.0
        self.step = 0

    def epochs(self, epochs: float) -> Iterator[events.AnyEvent]:
        life = self.life
        for epoch in range(math.ceil(epochs)):
            began = self.now
            end = min(1.0, epochs - epoch)
            yield from self.training(epoch, began, end)
            if end < 1.0:
                return
            self.now = began + life.epoch_s
            if life.snapshots:
                yield self.snapshot()
            yield from self.steps_to((epoch + 1) * life.steps)
            if life.epochs_seen:
                yield events.Epoch(
                    at=self.now,
                    epoch=epoch + 1,
                    step=self.step,
                    seconds=life.epoch_s,
                    batches=life.steps,
                    planned=life.planned,
                    source="ultralytics",
                )
            if life.is_validated(epoch):
                yield from self.validation(epoch)

    def snapshot(self) -> events.Snapshot:
        return events.Snapshot(
            at=self.now, step=self.step, position=self.step, path="snapshot", bytes=GIB, stall=0.2, seconds=1.0
        )

    def training(self, epoch: int, began: float, end: float) -> Iterator[events.AnyEvent]:
        life = self.life
        while True:
            self.now += self.between()
            part = (self.now - began) / life.epoch_s
            if part >= end:
                return
            yield from self.steps_to(epoch * life.steps + int(part * life.steps))
            yield from self.sample(life.trains_with(epoch + part))

    def validation(self, epoch: int) -> Iterator[events.AnyEvent]:
        life = self.life
        began = self.now
        level = life.trains_with(epoch + 1 - 1e-9)
        while self.now + 1.0 < began + life.validation_s:
            self.now += self.between()
            part = min(1.0, (self.now - began) / life.validation_s)
            yield from self.sample(level + life.spike * min(1.0, 3.0 * part))
        self.now = max(self.now, began + life.validation_s)
        yield events.Evaluation(at=self.now, step=self.step, seconds=self.now - began, fetches=10)

    def between(self) -> float:
        return max(1.0, self.now / DENSE_SAMPLES) * self.dice.uniform(0.98, 1.05)

    def steps_to(self, step: int) -> Iterator[events.AnyEvent]:
        count, seen = step - self.step, self.life.epochs_seen
        seconds = count * self.life.epoch_s / self.life.steps
        if count == 1:
            yield events.Step(at=self.now, step=step, seconds=seconds, batch=f"{step}" if seen else None)
        elif count > 1:
            fetched = count if seen else 0
            yield events.Steps(
                at=self.now, first=self.step + 1, last=step, seconds=seconds, batches=fetched, different=fetched
            )
        self.step = max(step, self.step)

    def sample(self, held: float) -> Iterator[events.AnyEvent]:
        life = self.life
        held += self.dice.gauss(0.0, life.noise)
        rss = held
        if life.mps:
            rss = 0.4 * life.base
            yield events.Memory(
                at=self.now, step=self.step, device="mps:0", driver=int((held - rss) * GIB), allocated=int(0.1 * GIB)
            )
        yield events.Sample(
            at=self.now,
            rss=int(rss * GIB),
            processes=1,
            available=int(max(0.0, life.limit - held) * GIB),
            swap=0,
            disk_free=100 * GIB,
        )

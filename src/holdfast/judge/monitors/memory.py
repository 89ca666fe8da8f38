"""Memory: of the process tree, of the system, and of the device as its driver sees it."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from holdfast.words import events

KEPT_SAMPLES = 512
KEPT_POINTS = 1024
KEPT_SPELLS = 512
KEPT_EVALUATIONS = 64


class Point(NamedTuple):
    """Consecutive samples, as one: numbers of bytes are means, other things are as they were at the last."""

    at: float
    step: int
    epoch: int | None
    """Epochs done by then."""
    n: int
    rss: float
    peak: int
    """The most that the process tree held in one of the samples."""
    available: int
    swap: int
    disk_free: int
    processes: int
    own: float | None
    """Of the process that trains, alone."""
    driver: float | None
    """What the device's driver or its caching allocator holds."""
    allocated: float | None
    """What of that is in tensors."""


class Spell(NamedTuple):
    """The most that was held within a short time."""

    began: float
    ended: float
    rss: int
    driver: int
    available: int


class EvaluationMemory(NamedTuple):
    """What one evaluation held, and what the training had held since the evaluation before it."""

    step: int
    during: Spell
    training: Spell


class Memory:
    def __init__(self) -> None:
        self.samples: deque[events.Sample] = deque(maxlen=KEPT_SAMPLES)
        self.count = 0
        """Samples so far."""
        self.points: list[Point] = []
        """The whole attempt, oldest first; when there are too many, neighbours are joined two by two."""
        self.least_available: int | None = None
        self.most_rss = 0
        self.device: events.Memory | None = None
        """The newest reading of the device's memory."""
        self.evaluations: deque[EvaluationMemory] = deque(maxlen=KEPT_EVALUATIONS)
        self._per_point = 1
        self._spells: list[Spell] = []
        """Since the last evaluation. That one has begun is known only when it ends."""

    @property
    def time_to_look(self) -> bool:
        """A long series changes slowly, and to fit it costs a millisecond: every few samples, ever fewer of them."""
        return self.count % max(4, self.count // 64) == 0

    @property
    def on_mps(self) -> bool:
        """The device's memory is the machine's own."""
        return self.device is not None and self.device.device.startswith("mps")

    @property
    def blind(self) -> bool:
        """Resident memory does not hold what the driver of a unified memory holds: they must be added."""
        return self.on_mps and any((point.driver or 0) > point.rss for point in self.points)

    def fold_sample(self, event: events.Sample, step: int, epoch: int | None = None) -> None:
        self.samples.append(event)
        self.count += 1
        least = self.least_available
        self.least_available = event.available if least is None else min(least, event.available)
        self.most_rss = max(self.most_rss, event.rss)
        device = self.device
        driver = _driver(device)
        self._add(
            Point(
                event.at,
                step,
                epoch,
                1,
                event.rss,
                event.rss,
                event.available,
                event.swap,
                event.disk_free,
                event.processes,
                device.rss if device is not None else None,
                driver,
                device.allocated if device is not None else None,
            )
        )
        self._spell(Spell(event.at, event.at, event.rss, driver or 0, event.available))

    def fold_device(self, event: events.Memory) -> None:
        self.device = event
        if self.samples:
            # Between two samples of the process tree the device alone was looked at.
            self._spell(Spell(event.at, event.at, 0, _driver(event) or 0, self.samples[-1].available))

    def fold_evaluation(self, event: events.Evaluation) -> None:
        """It comes at the end: what was measured in its time belongs to it."""
        began = event.at - event.seconds
        during = [spell for spell in self._spells if began <= spell.began <= event.at]
        training = [spell for spell in self._spells if spell.ended < began]
        if any(spell.rss for spell in during) and any(spell.rss for spell in training):
            self.evaluations.append(EvaluationMemory(event.step, _joined_spells(during), _joined_spells(training)))
        self._spells = [spell for spell in self._spells if spell.began > event.at]

    def _add(self, point: Point) -> None:
        if self.points and self.points[-1].n < self._per_point:
            self.points[-1] = _joined(self.points[-1], point)
            return
        self.points.append(point)
        if len(self.points) > KEPT_POINTS:
            self._per_point *= 2
            pairs = range(0, len(self.points) - 1, 2)
            rest = self.points[len(self.points) // 2 * 2 :]
            self.points = [_joined(self.points[i], self.points[i + 1]) for i in pairs] + rest

    def _spell(self, spell: Spell) -> None:
        self._spells.append(spell)
        if len(self._spells) > KEPT_SPELLS:
            pairs = range(0, len(self._spells) - 1, 2)
            rest = self._spells[len(self._spells) // 2 * 2 :]
            self._spells = [_joined_spells(self._spells[i : i + 2]) for i in pairs] + rest


def _driver(event: events.Memory | None) -> int | None:
    if event is None:
        return None
    return event.driver if event.driver is not None else event.reserved


def _joined(a: Point, b: Point) -> Point:
    n = a.n + b.n
    return b._replace(
        n=n,
        rss=(a.rss * a.n + b.rss * b.n) / n,
        peak=max(a.peak, b.peak),
        own=_mean(a.own, a.n, b.own, b.n),
        driver=_mean(a.driver, a.n, b.driver, b.n),
        allocated=_mean(a.allocated, a.n, b.allocated, b.n),
    )


def _mean(a: float | None, a_n: int, b: float | None, b_n: int) -> float | None:
    if a is None or b is None:
        return b
    return (a * a_n + b * b_n) / (a_n + b_n)


def _joined_spells(spells: list[Spell]) -> Spell:
    return Spell(
        spells[0].began,
        spells[-1].ended,
        max(spell.rss for spell in spells),
        max(spell.driver for spell in spells),
        min(spell.available for spell in spells),
    )

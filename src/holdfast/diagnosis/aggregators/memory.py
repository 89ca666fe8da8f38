"""Memory of the process tree, of the system, and of the device as reported by its driver."""

from __future__ import annotations

from collections import deque
from statistics import median
from typing import TYPE_CHECKING, NamedTuple

from holdfast.diagnosis.series import merge_pairs
from holdfast.schema.devices import parse_device

if TYPE_CHECKING:
    from holdfast.schema import events

MAX_SAMPLES = 512
MAX_POINTS = 1024
MAX_SPELLS = 512
MAX_EVALUATIONS = 64
MAX_EPOCHS = 512
MAX_WINDOWS = 512
"""Windows of one epoch."""
MAX_SHAPES = 3
"""The newest epochs are kept with all their samples: they show what repeats in every epoch."""
MIN_SAMPLES = 5
"""An epoch with fewer samples is merged with the next."""


class Point(NamedTuple):
    """One or more consecutive samples, merged: numbers of bytes are means, other values are those of the last sample."""

    at: float
    step: int
    epoch: int | None
    """Epochs done by then."""
    n: int
    rss: float
    peak: int
    """The maximum of the process tree in one of the samples."""
    available: int
    swap: int
    disk_free: int
    processes: int
    own: float | None
    """Resident memory of the training process alone."""
    driver: float | None
    """Memory held by the device's driver or its caching allocator."""
    allocated: float | None
    """The part of it that is in tensors."""

    @property
    def both(self) -> float:
        return self.rss + (self.driver or 0.0)


class HeldMemory(NamedTuple):
    """The memory of the training, counted in three ways."""

    rss: float
    both: float
    """Resident memory plus the memory held by the device's driver."""
    allocated: float
    """Memory in tensors on a device."""


class MemoryWindow(NamedTuple):
    """One sample, or several consecutive ones."""

    at: float
    step: int
    mean: HeldMemory
    most: HeldMemory


class EpochMemory(NamedTuple):
    """The memory in an epoch, or in a few short epochs together: the median of its samples."""

    epochs: int
    before: int
    """The last step before it."""
    last: int
    """Its last step."""
    at: float
    held: HeldMemory


class PressureSpell(NamedTuple):
    """The maximum memory within a short time."""

    began: float
    ended: float
    rss: int
    driver: int
    available: int


class EvaluationMemory(NamedTuple):
    """The memory during one evaluation, and during the training since the evaluation before it."""

    step: int
    during: PressureSpell
    training: PressureSpell


class Memory:
    def __init__(self) -> None:
        self.samples: deque[events.Sample] = deque(maxlen=MAX_SAMPLES)
        self.count = 0
        """Number of samples so far."""
        self.points: list[Point] = []
        """The whole attempt, oldest first. When there are too many points, neighbours are merged in pairs."""
        self.least_available: int | None = None
        self.most_rss = 0
        self.device: events.Memory | None = None
        """The newest reading of the device's memory."""
        self.evaluations: deque[EvaluationMemory] = deque(maxlen=MAX_EVALUATIONS)
        self.epochs: list[EpochMemory] = []
        """The whole attempt from its first step, oldest first; merged like the points."""
        self.shapes: deque[tuple[EpochMemory, list[MemoryWindow]]] = deque(maxlen=MAX_SHAPES)
        """The newest epochs, with their samples."""
        self._driver_above_rss = False
        self._first_seen_step: int | None = None
        self.windows: list[MemoryWindow] = []
        """Since the last epoch in `shapes`."""
        self._epochs_in_windows = 0
        self._epoch_began_after: int | None = None
        self._per_epoch = 1
        self._per_point = 1
        self._spells: list[PressureSpell] = []
        """Since the last evaluation. The start of an evaluation becomes known only when it ends."""

    @property
    def is_analysis_due(self) -> bool:
        """Whether to analyze the series now: less and less often, because a long series changes slowly."""
        return self.count % max(4, self.count // 64) == 0

    @property
    def is_shared(self) -> bool:
        """Whether the device takes its memory from the machine's."""
        return self.device is not None and parse_device(self.device.device).kind.shares_memory

    @property
    def excludes_driver(self) -> bool:
        """Whether resident memory excludes the driver's memory on such a device, so that both must be added."""
        return self.is_shared and self._driver_above_rss

    def fold_sample(self, event: events.Sample, step: int, epoch: int | None = None) -> None:
        self.samples.append(event)
        self.count += 1
        least = self.least_available
        self.least_available = event.available if least is None else min(least, event.available)
        self.most_rss = max(self.most_rss, event.rss)
        driver = _get_driver_bytes(self.device)
        own, allocated = (self.device.rss, self.device.allocated) if self.device is not None else (None, None)
        self._driver_above_rss = self._driver_above_rss or (driver or 0) > event.rss
        point = Point(
            at=event.at,
            step=step,
            epoch=epoch,
            n=1,
            rss=event.rss,
            peak=event.rss,
            available=event.available,
            swap=event.swap,
            disk_free=event.disk_free,
            processes=event.processes,
            own=own,
            driver=driver,
            allocated=allocated,
        )
        self._add_point(point)
        self._add_spell(PressureSpell(event.at, event.at, event.rss, driver or 0, event.available))
        if self._first_seen_step is None:
            self._first_seen_step = step
        elif step > self._first_seen_step:
            held = HeldMemory(event.rss, point.both, allocated or 0)
            self._add_window(MemoryWindow(event.at, step, held, held))

    def fold_epoch(self, event: events.Epoch) -> None:
        """Close an epoch with all samples since the epoch before. This includes its validation, as it does in every epoch."""
        self._epochs_in_windows += 1
        if len(self.windows) < MIN_SAMPLES or event.step <= (self._epoch_began_after or 0):
            return
        done = EpochMemory(
            self._epochs_in_windows,
            self._epoch_began_after or self.windows[0].step,
            event.step,
            event.at,
            HeldMemory(*(median(values) for values in zip(*(window.mean for window in self.windows), strict=True))),
        )
        self.shapes.append((done, self.windows))
        self.windows, self._epochs_in_windows, self._epoch_began_after = [], 0, event.step
        if self.epochs and self.epochs[-1].epochs < self._per_epoch:
            self.epochs[-1] = _merge_epochs(self.epochs[-1], done)
            return
        self.epochs.append(done)
        if len(self.epochs) > MAX_EPOCHS:
            self._per_epoch = 2 * max(self._per_epoch, done.epochs)
            self.epochs = merge_pairs(self.epochs, _merge_epochs)

    def fold_device(self, event: events.Memory) -> None:
        self.device = event
        if self.samples:
            # Between two samples of the process tree, only the device was sampled.
            self._add_spell(
                PressureSpell(event.at, event.at, 0, _get_driver_bytes(event) or 0, self.samples[-1].available)
            )

    def fold_evaluation(self, event: events.Evaluation) -> None:
        """Assign the samples to the evaluation. The event arrives at the end of the evaluation."""
        began = event.at - event.seconds
        during = [spell for spell in self._spells if began <= spell.began <= event.at]
        training = [spell for spell in self._spells if spell.ended < began]
        if any(spell.rss for spell in during) and any(spell.rss for spell in training):
            self.evaluations.append(EvaluationMemory(event.step, _merge_spells(during), _merge_spells(training)))
        self._spells = [spell for spell in self._spells if spell.began > event.at]

    def _add_point(self, point: Point) -> None:
        if self.points and self.points[-1].n < self._per_point:
            self.points[-1] = _merge_points(self.points[-1], point)
            return
        self.points.append(point)
        if len(self.points) > MAX_POINTS:
            self._per_point *= 2
            self.points = merge_pairs(self.points, _merge_points)

    def _add_window(self, window: MemoryWindow) -> None:
        self.windows.append(window)
        if len(self.windows) > MAX_WINDOWS:
            self.windows = merge_pairs(self.windows, _merge_windows)

    def _add_spell(self, spell: PressureSpell) -> None:
        self._spells.append(spell)
        if len(self._spells) > MAX_SPELLS:
            self._spells = merge_pairs(self._spells, lambda a, b: _merge_spells([a, b]))


def _get_driver_bytes(event: events.Memory | None) -> int | None:
    if event is None:
        return None
    return event.driver if event.driver is not None else event.reserved


def _merge_points(a: Point, b: Point) -> Point:
    n = a.n + b.n
    return b._replace(
        n=n,
        rss=(a.rss * a.n + b.rss * b.n) / n,
        peak=max(a.peak, b.peak),
        own=_mean(a.own, a.n, b.own, b.n),
        driver=_mean(a.driver, a.n, b.driver, b.n),
        allocated=_mean(a.allocated, a.n, b.allocated, b.n),
    )


def _merge_windows(a: MemoryWindow, b: MemoryWindow) -> MemoryWindow:
    mean = HeldMemory(*((one + other) / 2.0 for one, other in zip(a.mean, b.mean, strict=True)))
    return MemoryWindow(b.at, b.step, mean, HeldMemory(*map(max, zip(a.most, b.most, strict=True))))


def _merge_epochs(a: EpochMemory, b: EpochMemory) -> EpochMemory:
    n = a.epochs + b.epochs
    held = HeldMemory(*((one * a.epochs + other * b.epochs) / n for one, other in zip(a.held, b.held, strict=True)))
    return EpochMemory(n, a.before, b.last, b.at, held)


def _mean(a: float | None, a_n: int, b: float | None, b_n: int) -> float | None:
    if a is None or b is None:
        return b
    return (a * a_n + b * b_n) / (a_n + b_n)


def _merge_spells(spells: list[PressureSpell]) -> PressureSpell:
    return PressureSpell(
        spells[0].began,
        spells[-1].ended,
        max(spell.rss for spell in spells),
        max(spell.driver for spell in spells),
        min(spell.available for spell in spells),
    )

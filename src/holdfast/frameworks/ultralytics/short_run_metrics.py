"""Computes the metrics of a short run from its journal: the memory it used, and how long each part of a training takes.

Times use one of two clocks: wall time, or CPU time (of all its processes), which does not depend on the other load of the machine.
"""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass
from itertools import pairwise
from statistics import fmean, median
from typing import TYPE_CHECKING

from holdfast.schema import events
from holdfast.schema.devices import parse_device

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

WARM_UP = 2
"""Steps at the start of a training that allocate memory and fill caches."""

TRIM_ABOVE = 4


@dataclass(frozen=True)
class ShortRunTiming:
    """Seconds by one clock."""

    start: float = 0.0
    """The time until the first batch, and the extra time of the first batch."""
    batch: float = 0.0
    """A typical batch during most of the training."""
    closed: float = 0.0
    """A typical batch after mosaic is closed; the same as `batch` if nothing else was measured."""
    spread: float = 0.0
    """The median deviation of batches from the typical one, as a share of it."""
    validation: float = 0.0
    """One validation with all images of the short run."""
    saving: float = 0.0
    """Saving after each epoch."""
    after: float = 0.0
    """The time after the last epoch: best.pt is validated again, plots are drawn."""


@dataclass(frozen=True)
class ShortRunMetrics:
    training: int
    """Peak memory of all its processes during training in bytes, including the driver's if that is the same memory."""
    validation: int
    """The same during validation and at the end; 0 if there was no validation."""
    wall: ShortRunTiming
    processor: ShortRunTiming
    batches: int
    epochs: int
    device: tuple[str, int, int | None] | None = None
    """A device with its own memory: its name, the peak of reserved memory, its capacity."""
    snapshot: int = 0
    """Size of the largest snapshot on disk in bytes."""
    checkpoint: int = 0


def compute_metrics(entries: Iterable[events.Event], *, alike: bool = True) -> ShortRunMetrics | None:
    """Compute the metrics; None if there was no step. `alike`: all epochs were trained in the same way."""
    recorded = list(entries)
    steps = [event for event in recorded if isinstance(event, events.Step)]
    if not steps:
        return None
    timeline = _Timeline(recorded, steps)
    samples = timeline.samples
    return ShortRunMetrics(
        training=_find_peak(samples, timeline, lambda at: not timeline.validates(at)),
        validation=_find_peak(samples, timeline, timeline.validates),
        wall=_measure_timing(timeline, lambda at: at, alike=alike),
        processor=_measure_timing(timeline, _cpu_clock(samples), alike=alike),
        batches=sum(step.backwards for step in steps),
        epochs=len(timeline.epochs),
        device=_find_device(timeline.memory),
        snapshot=max((event.bytes for event in recorded if isinstance(event, events.Snapshot)), default=0),
        checkpoint=max((event.bytes or 0 for event in recorded if isinstance(event, events.Saved)), default=0),
    )


class _Timeline:
    """The events of one attempt by type, and its epochs."""

    def __init__(self, recorded: Sequence[events.Event], steps: list[events.Step]) -> None:
        self.steps = steps
        self.epochs = [event for event in recorded if isinstance(event, events.Epoch)]
        self.samples = [event for event in recorded if isinstance(event, events.Sample)]
        self.saves = [event.at for event in recorded if isinstance(event, events.Saved)]
        self.memory = [event for event in recorded if isinstance(event, events.Memory)]
        self.started = next((event.at for event in recorded if isinstance(event, events.AttemptStarted)), steps[0].at)
        ends = [event.at for event in recorded if isinstance(event, events.AttemptEnded)]
        self.ended = ends[0] if ends else max(event.at for event in recorded)
        self.finished = bool(ends)
        began = [epoch.at - epoch.seconds for epoch in self.epochs]
        self.began = began or [steps[0].at - steps[0].seconds]
        self.between = list(
            zip([epoch.at for epoch in self.epochs], [*began[1:], max(self.ended, self.began[-1])], strict=False)
        )
        """The intervals from the last batch of each epoch to the start of the next epoch, or to the end."""

    def validates(self, at: float) -> bool:
        return any(since <= at <= until for since, until in self.between)

    def batches_of(self, number: int, clock: Callable[[float], float]) -> list[float]:
        """Return the batch times of one epoch, counted from 0. The warm-up steps are excluded if there are others."""
        last = self.epochs[number].at if number < len(self.epochs) else self.ended
        steps = [step for step in self.steps if self.began[number] < step.at <= last]
        pairs = pairwise(steps)
        durations = [(clock(b.at) - clock(a.at)) / b.backwards for a, b in pairs if b.backwards]
        durations = durations[WARM_UP - 1 :] if number == 0 and len(durations) > WARM_UP else durations
        return durations or [
            (clock(step.at) - clock(step.at - step.seconds)) / max(1, step.backwards) for step in steps[-1:]
        ]


def _measure_timing(timeline: _Timeline, clock: Callable[[float], float], *, alike: bool) -> ShortRunTiming:
    first = timeline.batches_of(0, clock)
    later = timeline.batches_of(1, clock) if len(timeline.epochs) > 1 else []
    if alike:
        first, later = first + later, []
    batch = trimmed_mean(first)
    off = [abs(duration - batch) for duration in first]
    began = clock(timeline.began[0])
    extra = clock(timeline.steps[0].at) - began - batch * max(1, timeline.steps[0].backwards)
    validations, savings, after = _between_epochs(timeline, clock)
    return ShortRunTiming(
        start=began - clock(timeline.started) + max(0.0, extra),
        batch=batch,
        closed=trimmed_mean(later) if later else batch,
        spread=median(off) / batch if batch else 0.0,
        validation=median(validations) if validations else 0.0,
        saving=median(savings) if savings else 0.0,
        after=after,
    )


def trimmed_mean(values: Sequence[float]) -> float:
    """Return the mean without the minimum and the maximum: regular costs (a snapshot) are included, a single outlier is not."""
    inner = sorted(values)[1:-1] if len(values) > TRIM_ABOVE else values
    return fmean(inner)


def _between_epochs(timeline: _Timeline, clock: Callable[[float], float]) -> tuple[list[float], list[float], float]:
    """Return the times of validations, of saving, and of the end of the training. A validation ends when the checkpoint is saved."""
    validations: list[float] = []
    savings: list[float] = []
    after = 0.0
    for number, (since, until) in enumerate(timeline.between):
        last = number == len(timeline.epochs) - 1
        saves = [at for at in timeline.saves if since <= at <= until]
        validated = saves[0] if saves else until
        if last and not timeline.finished:
            continue
        if saves or not last:
            validations.append(clock(validated) - clock(since))
        if last:
            after = clock(until) - clock(validated if saves else since)
        else:
            savings.append(clock(until) - clock(validated))
    return validations, savings, after


def _cpu_clock(samples: Sequence[events.Sample]) -> Callable[[float], float]:
    """Return a clock of the CPU time of the processes, interpolated between two samples."""
    known = [(sample.at, sample.cpu) for sample in samples if sample.cpu is not None]
    times = [at for at, _ in known]

    def clock(at: float) -> float:
        if not known:
            return 0.0
        after = bisect_left(times, at)
        if after == 0:
            return known[0][1]
        if after == len(known):
            return known[-1][1]
        (begin, low), (end, high) = known[after - 1], known[after]
        return low + (high - low) * (at - begin) / (end - begin) if end > begin else high

    return clock


def _find_peak(samples: Sequence[events.Sample], timeline: _Timeline, is_counted: Callable[[float], bool]) -> int:
    """Return the peak memory. On a Mac the driver uses main memory, which resident memory does not include."""
    resident = max((sample.rss for sample in samples if is_counted(sample.at)), default=0)
    shared = [event.driver or 0 for event in timeline.memory if _is_shared(event) and is_counted(event.at)]
    return resident + max(shared, default=0)


def _is_shared(event: events.Memory) -> bool:
    return parse_device(event.device).kind.shares_memory


def _find_device(memory: Sequence[events.Memory]) -> tuple[str, int, int | None] | None:
    separate = [event for event in memory if event.reserved is not None and not _is_shared(event)]
    if not separate:
        return None
    return separate[-1].device, max(event.reserved or 0 for event in separate), separate[-1].limit

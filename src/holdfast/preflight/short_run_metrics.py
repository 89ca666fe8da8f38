"""From the journal of a short trial to its figures: what it held, and how long each part of a training takes.

Times are read off a clock: that of the wall, or that of the processors (seconds that all of its processes computed), which tells the same
on a machine where others compute too.
"""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass
from itertools import pairwise
from statistics import fmean, median
from typing import TYPE_CHECKING

from holdfast.schema import events

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

WARM_UP = 2
"""Steps at the beginning of a training that allocate and fill caches."""

TRIMMED_FROM = 4


@dataclass(frozen=True)
class ShortRunTiming:
    """Seconds by one clock."""

    start: float = 0.0
    """Until the first batch, and what that took longer than others."""
    batch: float = 0.0
    """A typical batch, as it is for most of the training."""
    closed: float = 0.0
    """A typical batch after mosaic was closed; as `batch` where nothing else was seen."""
    spread: float = 0.0
    """How far batches are from the typical one, as a part of it: half of them are nearer."""
    validation: float = 0.0
    """One, of all images of the trial."""
    saving: float = 0.0
    """After each epoch."""
    after: float = 0.0
    """What comes after the last epoch: best.pt is validated again, plots are drawn."""


@dataclass(frozen=True)
class ShortRunMetrics:
    training: int
    """Bytes that all of its processes held at most while it trained, with the driver's where that is the same memory."""
    validation: int
    """The same while it validated, and at the end; 0 where it did not come to that."""
    wall: ShortRunTiming
    processor: ShortRunTiming
    batches: int
    epochs: int
    device: tuple[str, int, int | None] | None = None
    """A device with memory of its own: its name, what was reserved there at most, what it can hold."""
    snapshot: int = 0
    """Bytes on disk of the largest."""
    checkpoint: int = 0


def compute_metrics(entries: Iterable[events.Event], *, alike: bool = True) -> ShortRunMetrics | None:
    """None where not even a step was made. `alike`: all epochs were trained in the same way."""
    told = list(entries)
    steps = [event for event in told if isinstance(event, events.Step)]
    if not steps:
        return None
    seen = _Seen(told, steps)
    samples = seen.samples
    return ShortRunMetrics(
        training=_most(samples, seen, lambda at: not seen.validates(at)),
        validation=_most(samples, seen, seen.validates),
        wall=_pace(seen, lambda at: at, alike=alike),
        processor=_pace(seen, _processors(samples), alike=alike),
        batches=sum(step.backwards for step in steps),
        epochs=len(seen.epochs),
        device=_device(seen.memory),
        snapshot=max((event.bytes for event in told if isinstance(event, events.Snapshot)), default=0),
        checkpoint=max((event.bytes or 0 for event in told if isinstance(event, events.Saved)), default=0),
    )


class _Seen:
    """The events of one attempt by their kinds, and the epochs that they fall into."""

    def __init__(self, told: Sequence[events.Event], steps: list[events.Step]) -> None:
        self.steps = steps
        self.epochs = [event for event in told if isinstance(event, events.Epoch)]
        self.samples = [event for event in told if isinstance(event, events.Sample)]
        self.saves = [event.at for event in told if isinstance(event, events.Saved)]
        self.memory = [event for event in told if isinstance(event, events.Memory)]
        self.started = next((event.at for event in told if isinstance(event, events.AttemptStarted)), steps[0].at)
        ends = [event.at for event in told if isinstance(event, events.AttemptEnded)]
        self.ended = ends[0] if ends else max(event.at for event in told)
        self.finished = bool(ends)
        began = [epoch.at - epoch.seconds for epoch in self.epochs]
        self.began = began or [steps[0].at - steps[0].seconds]
        self.between = list(
            zip([epoch.at for epoch in self.epochs], [*began[1:], max(self.ended, self.began[-1])], strict=False)
        )
        """From the last batch of each epoch to what comes next."""

    def validates(self, at: float) -> bool:
        return any(since <= at <= until for since, until in self.between)

    def batches_of(self, number: int, clock: Callable[[float], float]) -> list[float]:
        """Of one epoch, counted from 0; the first steps of all are left out where there are others."""
        last = self.epochs[number].at if number < len(self.epochs) else self.ended
        own = [step for step in self.steps if self.began[number] < step.at <= last]
        pairs = pairwise(own)
        each = [(clock(b.at) - clock(a.at)) / b.backwards for a, b in pairs if b.backwards]
        each = each[WARM_UP - 1 :] if number == 0 and len(each) > WARM_UP else each
        return each or [(clock(step.at) - clock(step.at - step.seconds)) / max(1, step.backwards) for step in own[-1:]]


def _pace(seen: _Seen, clock: Callable[[float], float], *, alike: bool) -> ShortRunTiming:
    first = seen.batches_of(0, clock)
    later = seen.batches_of(1, clock) if len(seen.epochs) > 1 else []
    if alike:
        first, later = first + later, []
    batch = typical(first)
    off = [abs(one - batch) for one in first]
    began = clock(seen.began[0])
    beyond = clock(seen.steps[0].at) - began - batch * max(1, seen.steps[0].backwards)
    validations, savings, after = _between_epochs(seen, clock)
    return ShortRunTiming(
        start=began - clock(seen.started) + max(0.0, beyond),
        batch=batch,
        closed=typical(later) if later else batch,
        spread=median(off) / batch if batch else 0.0,
        validation=median(validations) if validations else 0.0,
        saving=median(savings) if savings else 0.0,
        after=after,
    )


def typical(values: Sequence[float]) -> float:
    """The mean without the least and the most: what comes now and then (a snapshot) counts in, what came once does not."""
    inner = sorted(values)[1:-1] if len(values) > TRIMMED_FROM else values
    return fmean(inner)


def _between_epochs(seen: _Seen, clock: Callable[[float], float]) -> tuple[list[float], list[float], float]:
    """Validations end where the checkpoint is saved. After the last of them comes the end of the training."""
    validations: list[float] = []
    savings: list[float] = []
    after = 0.0
    for number, (since, until) in enumerate(seen.between):
        last = number == len(seen.epochs) - 1
        saves = [at for at in seen.saves if since <= at <= until]
        validated = saves[0] if saves else until
        if last and not seen.finished:
            continue
        if saves or not last:
            validations.append(clock(validated) - clock(since))
        if last:
            after = clock(until) - clock(validated if saves else since)
        else:
            savings.append(clock(until) - clock(validated))
    return validations, savings, after


def _processors(samples: Sequence[events.Sample]) -> Callable[[float], float]:
    """Seconds that the processes had computed by then, between two looks in proportion."""
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


def _most(samples: Sequence[events.Sample], seen: _Seen, counts: Callable[[float], bool]) -> int:
    """On a Mac the driver's memory is the machine's own, and resident memory does not hold it."""
    resident = max((sample.rss for sample in samples if counts(sample.at)), default=0)
    shared = [event.driver or 0 for event in seen.memory if event.device.startswith("mps") and counts(event.at)]
    return resident + max(shared, default=0)


def _device(memory: Sequence[events.Memory]) -> tuple[str, int, int | None] | None:
    apart = [event for event in memory if event.reserved is not None and not event.device.startswith("mps")]
    if not apart:
        return None
    return apart[-1].device, max(event.reserved or 0 for event in apart), apart[-1].limit

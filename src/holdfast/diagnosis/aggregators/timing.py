"""How long things take: steps, waiting for data, epochs, evaluations, and what the machine did meanwhile."""

from __future__ import annotations

import math
from collections import deque
from dataclasses import dataclass, field
from itertools import pairwise
from statistics import median
from typing import NamedTuple

from holdfast.diagnosis.series import Series
from holdfast.schema import events

KEPT_EPOCHS = 1024
KEPT_WINDOWS = 512
KEPT_EVALUATIONS = 256
KEPT_PAUSES = 256
WINDOW_SECONDS = 60.0
"""Step time is compared between windows of at least this long, and of at least so many steps."""
WINDOW_STEPS = 5
COMPARED_FROM = 5.0
"""Seconds. Shorter epochs, of which there may be very many, are not compared with those before them."""


class Pause(NamedTuple):
    """Time that was not the steps'."""

    at: float
    """Its end."""
    seconds: float
    what: str
    """"evaluation", "saving", "slept" or "suspended"."""


@dataclass
class Period:
    """Some time of a training: what it did, and what the machine did meanwhile."""

    last_step: int = 0
    steps: int = 0
    step_seconds: float = 0.0
    slowest: float = 0.0
    """The longest step."""
    data_wait: float = 0.0
    pauses: list[Pause] = field(default_factory=list)
    first_sample: events.Sample | None = None
    """The last one before it where there is one: counters that only rise are read as differences."""
    last_sample: events.Sample | None = None
    load: float = 0.0
    """The sum of the samples' load averages, and how many samples had one."""
    loads: int = 0
    least_available: int | None = None
    most_swap: int = 0

    def after(self, before: Period) -> None:
        """Begin where the period before ended."""
        self.first_sample = self.last_sample = before.last_sample
        self.most_swap = before.last_sample.swap if before.last_sample is not None else 0

    def fold_steps(self, event: events.Step | events.Steps) -> None:
        self.step_seconds += event.seconds
        self.data_wait += event.data_wait
        if isinstance(event, events.Step):
            self.last_step = event.step
            self.steps += 1
            slowest = event.seconds
        else:
            self.last_step = event.last
            self.steps += event.last - event.first + 1
            slowest = event.slowest
        self.slowest = max(self.slowest, slowest)

    def fold_sample(self, event: events.Sample) -> None:
        if self.first_sample is None:
            self.first_sample = event
        self.last_sample = event
        if event.load is not None:
            self.load += event.load
            self.loads += 1
        least = self.least_available
        self.least_available = event.available if least is None else min(least, event.available)
        self.most_swap = max(self.most_swap, event.swap)

    def pause(self, pause: Pause) -> None:
        if len(self.pauses) < KEPT_PAUSES:
            self.pauses.append(pause)

    def paused(self, *what: str, since: float = 0.0) -> float:
        return sum(pause.seconds for pause in self.pauses if pause.what in what and pause.at > since)

    @property
    def step_time(self) -> float:
        """Seconds a step, the longest left out: one pause that nobody knows of is not a slower training."""
        if self.steps < 2:
            return self.step_seconds
        return (self.step_seconds - self.slowest) / (self.steps - 1)

    @property
    def swapped_in(self) -> int:
        first, last = self.first_sample, self.last_sample
        if first is None or last is None or first.swap_in is None or last.swap_in is None:
            return 0
        return last.swap_in - first.swap_in

    @property
    def swap_grown(self) -> int:
        return self.most_swap - self.first_sample.swap if self.first_sample is not None else 0

    @property
    def own_load(self) -> float | None:
        """Processors that the training kept busy, on average."""
        first, last = self.first_sample, self.last_sample
        if first is None or last is None or first.cpu is None or last.cpu is None or last.at <= first.at:
            return None
        return max(0.0, last.cpu - first.cpu) / (last.at - first.at)

    @property
    def others_load(self) -> float | None:
        """What others kept busy or waiting, as far as the load average tells."""
        own = self.own_load
        return None if own is None or not self.loads else max(0.0, self.load / self.loads - own)


@dataclass
class StepWindow(Period):
    usual: float | None = None
    """The median step time of the windows before it, the very first left out; None while they are too few."""


@dataclass
class EpochTiming(Period):
    epoch: int = 0
    at: float = 0.0
    seconds: float = 0.0
    """Its training: evaluation, saving, sleep and suspension left out."""
    wall: float | None = None
    """From the end of the epoch before to its own, all included; None for the first."""
    batches: int = 0
    usual: float | None = None
    """What it should have taken by the median of the epochs before it, the very first left out: seconds as above."""
    usual_wall: float | None = None


class EvaluationTiming(NamedTuple):
    step: int
    seconds: float
    usual: float | None
    """What it should have taken by the median of the evaluations before it, for as many batches."""


def joined(a: Period, b: Period) -> Period:
    """Two neighbours as one."""
    least = [low for low in (a.least_available, b.least_available) if low is not None]
    return Period(
        last_step=b.last_step,
        steps=a.steps + b.steps,
        step_seconds=a.step_seconds + b.step_seconds,
        slowest=max(a.slowest, b.slowest),
        data_wait=a.data_wait + b.data_wait,
        pauses=a.pauses + b.pauses,
        first_sample=a.first_sample,
        last_sample=b.last_sample,
        load=a.load + b.load,
        loads=a.loads + b.loads,
        least_available=min(least) if least else None,
        most_swap=max(a.most_swap, b.most_swap),
    )


class Timing:
    def __init__(self) -> None:
        self.step_seconds = 0.0
        self.data_wait = 0.0
        self.evaluation_seconds = 0.0
        self.slept = 0.0
        self.last_step = 0
        """That the record tells of; the heartbeat may know of later ones."""
        self.last_step_at: float | None = None
        self.paused_since = 0.0
        """Seconds of evaluating and saving since then."""
        self.exiting_at: float | None = None
        """When it came to an orderly end; taking a process down takes its time after that."""
        self.steps = Series()
        """Seconds a step, by step."""
        self.epochs: deque[EpochTiming] = deque(maxlen=KEPT_EPOCHS)
        self.epochs_done = 0
        """In this attempt."""
        self.windows: deque[StepWindow] = deque(maxlen=KEPT_WINDOWS)
        self.evaluations: deque[EvaluationTiming] = deque(maxlen=KEPT_EVALUATIONS)
        self._evaluations_each: deque[float] = deque(maxlen=KEPT_EVALUATIONS)
        self.usual_epoch: float | None = None
        """The median of what epochs took so far, the very first left out; None while they are fewer than three."""
        self._epoch = EpochTiming()
        self._window = StepWindow()
        self._windows_seen = 0

    @property
    def steps_per_epoch(self) -> float | None:
        counts = [epoch.last_step - before.last_step for before, epoch in pairwise(self.epochs)]
        counts = [count for count in counts if count > 0]
        return median(counts) if counts else None

    def last_step_of(self, epoch: int | None) -> float | None:
        """Where an epoch to come will end, if it is as long as the others."""
        each = self.steps_per_epoch
        if each is None or epoch is None:
            return None
        return self.epochs[-1].last_step + (epoch - self.epochs[-1].epoch) * each

    def epoch_of(self, step: float) -> int | None:
        """In which epoch a step to come lies."""
        each = self.steps_per_epoch
        if each is None:
            return None
        return max(1, self.epochs[-1].epoch + math.ceil((step - self.epochs[-1].last_step) / each))

    @property
    def under_way(self) -> Period:
        """The time since the last epoch ended."""
        return self._epoch

    def fold(self, event: events.Step | events.Steps) -> None:
        self.last_step = event.step if isinstance(event, events.Step) else event.last
        self.last_step_at, self.paused_since = event.at, 0.0
        self.step_seconds += event.seconds
        self.data_wait += event.data_wait
        self._epoch.fold_steps(event)
        self._window.fold_steps(event)
        if self._window.step_seconds >= WINDOW_SECONDS and self._window.steps >= WINDOW_STEPS:
            self._close_window()
        if isinstance(event, events.Step):
            self.steps.add(event.step, event.seconds)
        else:
            count = event.last - event.first + 1
            each = event.seconds / count
            self.steps.add_many(event.last, n=count, mean=each, low=each, high=event.slowest, zeros=0, last=each)

    def fold_evaluation(self, event: events.Evaluation) -> None:
        self.evaluation_seconds += event.seconds
        self.paused_since += event.seconds
        self._pause(Pause(event.at, event.seconds, "evaluation"))
        each = event.seconds / max(1, event.fetches)
        before = self._evaluations_each
        usual = median(before) * max(1, event.fetches) if len(before) >= 3 else None
        self.evaluations.append(EvaluationTiming(event.step, event.seconds, usual))
        before.append(each)

    def fold_saved(self, event: events.Saved) -> None:
        self.paused_since += event.seconds
        self._pause(Pause(event.at, event.seconds, "saving"))

    def fold_slept(self, event: events.Slept) -> None:
        self.slept += event.seconds
        self._pause(Pause(event.at, event.seconds, "slept"))

    def fold_continued(self, event: events.Continued) -> None:
        self._pause(Pause(event.at, event.seconds, "suspended"))

    def fold_sample(self, event: events.Sample) -> None:
        self._epoch.fold_sample(event)
        self._window.fold_sample(event)

    def fold_epoch(self, event: events.Epoch) -> None:
        done, self._epoch = self._epoch, EpochTiming()
        self._epoch.after(done)
        done.epoch, done.at, done.last_step, done.batches = event.epoch, event.at, event.step, event.batches
        done.wall = event.at - self.epochs[-1].at if self.epochs else None
        done.seconds = _training_seconds(done, event)
        if self.epochs_done >= 3 and max(event.seconds, done.wall or 0.0) >= COMPARED_FROM:
            settled = self._settled()
            done.usual = _usual(settled, done.batches)
            walls = [epoch.wall for epoch in settled if epoch.wall is not None]
            done.usual_wall = median(walls) if walls else None
        self.epochs.append(done)
        self.epochs_done += 1
        if self.epochs_done >= 4 and (self.epochs_done <= 64 or self.epochs_done % 256 == 0):
            self.usual_epoch = median(epoch.seconds for epoch in self._settled())

    def _settled(self) -> list[EpochTiming]:
        """All but the very first."""
        return list(self.epochs)[1 if len(self.epochs) == self.epochs_done else 0 :]

    def _pause(self, pause: Pause) -> None:
        self._epoch.pause(pause)
        self._window.pause(pause)

    def _close_window(self) -> None:
        done, self._window = self._window, StepWindow()
        self._window.after(done)
        before = [window.step_time for window in self.windows]
        settled = before[1:] if len(before) == self._windows_seen else before
        # The newest but one may be slow already: it is not what is usual.
        done.usual = median(settled[:-1]) if len(settled) >= 4 else None
        self.windows.append(done)
        self._windows_seen += 1


def _training_seconds(done: EpochTiming, event: events.Epoch) -> float:
    since = event.at - event.seconds
    seconds = event.seconds - done.paused("evaluation", "saving", "suspended", since=since)
    slept = done.paused("slept")
    # A monotonic clock stands still while the machine sleeps, the wall clock does not: which one timed it shows here.
    if slept and (done.wall is None or event.seconds > done.wall - slept):
        seconds -= slept
    return max(0.0, seconds)


def _usual(epochs: list[EpochTiming], batches: int) -> float | None:
    if batches and all(epoch.batches for epoch in epochs):
        return median(epoch.seconds / epoch.batches for epoch in epochs) * batches
    return median(epoch.seconds for epoch in epochs)

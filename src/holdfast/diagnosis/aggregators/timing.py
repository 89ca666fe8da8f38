"""The duration of steps, data waits, epochs and evaluations, and what the machine did at the same time."""

from __future__ import annotations

import math
from collections import deque
from dataclasses import dataclass, field
from itertools import pairwise
from statistics import median
from typing import NamedTuple

from holdfast.diagnosis.series import Series, span_of
from holdfast.schema import events

MAX_EPOCHS = 1024
MAX_WINDOWS = 512
MAX_EVALUATIONS = 256
MAX_PAUSES = 256
WINDOW_SECONDS = 60.0
"""Step times are compared between windows of at least this duration and this number of steps."""
WINDOW_STEPS = 5
MIN_COMPARED_S = 5.0
"""Shorter epochs, of which there may be very many, are not compared with earlier ones."""


class Pause(NamedTuple):
    """Time that was not spent on steps."""

    at: float
    """The end of the pause."""
    seconds: float
    what: str
    """"evaluation", "saving", "slept" or "suspended"."""


@dataclass
class Period:
    """A period of a training: what the training did, and what the machine did at the same time."""

    last_step: int = 0
    steps: int = 0
    step_seconds: float = 0.0
    slowest: float = 0.0
    """The longest step."""
    data_wait: float = 0.0
    pauses: list[Pause] = field(default_factory=list)
    first_sample: events.Sample | None = None
    """The last sample before the period, if there is one: counters that only increase are read as differences."""
    last_sample: events.Sample | None = None
    load: float = 0.0
    """The sum of the load averages of the samples, and the number of samples that have one."""
    loads: int = 0
    least_available: int | None = None
    most_swap: int = 0

    def continue_from(self, before: Period) -> None:
        """Start where the previous period ended."""
        self.first_sample = self.last_sample = before.last_sample
        self.most_swap = before.last_sample.swap if before.last_sample is not None else 0

    def fold_steps(self, event: events.Step | events.Steps) -> None:
        self.step_seconds += event.seconds
        self.data_wait += event.data_wait
        first, self.last_step = span_of(event)
        self.steps += self.last_step - first + 1
        self.slowest = max(self.slowest, event.seconds if isinstance(event, events.Step) else event.slowest)

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

    def paused(self, *what: str, since: float = 0.0) -> float:
        return sum(pause.seconds for pause in self.pauses if pause.what in what and pause.at > since)

    @property
    def step_time(self) -> float:
        """Seconds per step without the longest step: a single unrecorded pause does not make the training slower."""
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
        """The average number of processors that the training kept busy."""
        first, last = self.first_sample, self.last_sample
        if first is None or last is None or first.cpu is None or last.cpu is None or last.at <= first.at:
            return None
        return max(0.0, last.cpu - first.cpu) / (last.at - first.at)

    @property
    def others_load(self) -> float | None:
        """The load of other programs, estimated from the load average."""
        own = self.own_load
        return None if own is None or not self.loads else max(0.0, self.load / self.loads - own)


@dataclass
class StepWindow(Period):
    usual: float | None = None
    """The median step time of earlier windows, without the very first; None if there are too few."""


@dataclass
class EpochTiming(Period):
    epoch: int = 0
    at: float = 0.0
    seconds: float = 0.0
    """Time spent on training: without evaluation, saving, sleep and suspension."""
    wall: float | None = None
    """Wall time from the end of the previous epoch to the end of this one; None for the first."""
    batches: int = 0
    usual: float | None = None
    """The expected value of `seconds`: the median of earlier epochs, without the very first."""
    usual_wall: float | None = None


class EvaluationTiming(NamedTuple):
    step: int
    seconds: float
    usual: float | None
    """The expected duration for this number of batches: the median of earlier evaluations."""


def merge_periods(a: Period, b: Period) -> Period:
    """Merge two adjacent periods."""
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
        """The last step in the record. The heartbeat may have counted later ones."""
        self.last_step_at: float | None = None
        self.paused_since = 0.0
        """Seconds of evaluation and saving since then."""
        self.exiting_at: float | None = None
        """When the process began an orderly exit. Its termination takes some time after that."""
        self.steps = Series()
        """Seconds per step, by step."""
        self.epochs: deque[EpochTiming] = deque(maxlen=MAX_EPOCHS)
        self.epochs_done = 0
        """Number of epochs done in this attempt."""
        self.windows: deque[StepWindow] = deque(maxlen=MAX_WINDOWS)
        self.evaluations: deque[EvaluationTiming] = deque(maxlen=MAX_EVALUATIONS)
        self._evaluation_fetch_times: deque[float] = deque(maxlen=MAX_EVALUATIONS)
        self.usual_epoch: float | None = None
        """The median duration of the epochs so far, without the very first; None if there are fewer than three."""
        self._epoch = EpochTiming()
        self._window = StepWindow()
        self._windows_seen = 0

    @property
    def steps_per_epoch(self) -> float | None:
        counts = [epoch.last_step - before.last_step for before, epoch in pairwise(self.epochs)]
        counts = [count for count in counts if count > 0]
        return median(counts) if counts else None

    def last_step_of(self, epoch: int | None) -> float | None:
        """Return the expected last step of a future epoch, if it is as long as the others."""
        per_epoch = self.steps_per_epoch
        if per_epoch is None or epoch is None:
            return None
        return self.epochs[-1].last_step + (epoch - self.epochs[-1].epoch) * per_epoch

    def epoch_of(self, step: float) -> int | None:
        """Return the epoch that will contain a future step."""
        per_epoch = self.steps_per_epoch
        if per_epoch is None:
            return None
        return max(1, self.epochs[-1].epoch + math.ceil((step - self.epochs[-1].last_step) / per_epoch))

    @property
    def under_way(self) -> Period:
        """The period since the last epoch ended."""
        return self._epoch

    def fold(self, event: events.Step | events.Steps) -> None:
        first, self.last_step = span_of(event)
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
            count = self.last_step - first + 1
            mean = event.seconds / count
            window = events.WindowStats(n=count, mean=mean, low=mean, high=event.slowest, last=mean)
            self.steps.add_window(self.last_step, window)

    def fold_evaluation(self, event: events.Evaluation) -> None:
        self.evaluation_seconds += event.seconds
        self.fold_pause(event, "evaluation")
        fetches, before = max(1, event.fetches), self._evaluation_fetch_times
        usual = median(before) * fetches if len(before) >= 3 else None
        self.evaluations.append(EvaluationTiming(event.step, event.seconds, usual))
        before.append(event.seconds / fetches)

    def fold_pause(self, event: events.Evaluation | events.Saved | events.Slept | events.Continued, what: str) -> None:
        if what in ("evaluation", "saving"):
            self.paused_since += event.seconds
        elif what == "slept":
            self.slept += event.seconds
        for period in (self._epoch, self._window):
            if len(period.pauses) < MAX_PAUSES:
                period.pauses.append(Pause(event.at, event.seconds, what))

    def fold_sample(self, event: events.Sample) -> None:
        self._epoch.fold_sample(event)
        self._window.fold_sample(event)

    def fold_epoch(self, event: events.Epoch) -> None:
        done, self._epoch = self._epoch, EpochTiming()
        self._epoch.continue_from(done)
        done.epoch, done.at, done.last_step, done.batches = event.epoch, event.at, event.step, event.batches
        done.wall = event.at - self.epochs[-1].at if self.epochs else None
        done.seconds = _training_seconds(done, event)
        if self.epochs_done >= 3 and max(event.seconds, done.wall or 0.0) >= MIN_COMPARED_S:
            earlier = self._epochs_after_first()
            done.usual = _expected_seconds(earlier, done.batches)
            walls = [epoch.wall for epoch in earlier if epoch.wall is not None]
            done.usual_wall = median(walls) if walls else None
        self.epochs.append(done)
        self.epochs_done += 1
        if self.epochs_done >= 4 and (self.epochs_done <= 64 or self.epochs_done % 256 == 0):
            self.usual_epoch = median(epoch.seconds for epoch in self._epochs_after_first())

    def _epochs_after_first(self) -> list[EpochTiming]:
        """Return all epochs but the very first."""
        return list(self.epochs)[1 if len(self.epochs) == self.epochs_done else 0 :]

    def _close_window(self) -> None:
        done, self._window = self._window, StepWindow()
        self._window.continue_from(done)
        before = [window.step_time for window in self.windows]
        earlier = before[1:] if len(before) == self._windows_seen else before
        # The newest of the earlier windows may already be slow, so it does not count as usual.
        done.usual = median(earlier[:-1]) if len(earlier) >= 4 else None
        self.windows.append(done)
        self._windows_seen += 1


def _training_seconds(done: EpochTiming, event: events.Epoch) -> float:
    since = event.at - event.seconds
    seconds = event.seconds - done.paused("evaluation", "saving", "suspended", since=since)
    slept = done.paused("slept")
    # A monotonic clock stops while the machine sleeps, the wall clock does not. This shows which clock was used.
    if slept and (done.wall is None or event.seconds > done.wall - slept):
        seconds -= slept
    return max(0.0, seconds)


def _expected_seconds(epochs: list[EpochTiming], batches: int) -> float | None:
    if batches and all(epoch.batches for epoch in epochs):
        return median(epoch.seconds / epoch.batches for epoch in epochs) * batches
    return median(epoch.seconds for epoch in epochs)

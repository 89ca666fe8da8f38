"""The picture of a run that events add up to: what rules, policy, verdict and everything shown look at.

`fold` takes one entry of the journal after the other. The same journal always gives the same picture, live or replayed.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Any

from holdfast.judge.series import Series
from holdfast.words import events
from holdfast.words.events import as_finite

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from holdfast.record.journal import Entry
    from holdfast.words.verdicts import Decision, Finding

KEPT_SAMPLES = 512


class AttemptPicture:
    """One life of the child process."""

    def __init__(self, started: events.AttemptStarted) -> None:
        self.number = started.attempt
        self.started = started
        self.interpreters: list[events.Interpreter] = []
        self.torch: str | None = None
        self.hello: events.Hello | None = None
        self.others: list[events.Hello] = []
        """Further processes that train: other ranks, or more than one under the same rank."""
        self.observed: events.Observed | None = None
        self.first_step: int | None = None
        self.first_step_at: float | None = None
        self.last_step = started.resume.step if started.resume else 0
        self.step_seconds = 0.0
        self.data_wait = 0.0
        self.evaluation_seconds = 0.0
        self.saving_seconds = 0.0
        self.adapter: str | None = None
        """The framework that was recognised, where one was."""
        self.epoch: int | None = None
        self.planned_epochs: int | None = None
        self.loss = Series()
        self.loss_at_zero_from_the_start = 0
        """Steps whose loss was exactly zero before any other was seen."""
        self.gradient_seen = False
        """Whether a gradient was ever seen that is not zero."""
        self.metrics: events.Metrics | None = None
        self.movement: events.Movement | None = None
        self.schedules: dict[str, events.Schedule] = {}
        self.saved: dict[str, events.Saved] = {}
        """By path, the newest."""
        self.samples: deque[events.Sample] = deque(maxlen=KEPT_SAMPLES)
        self.least_available: int | None = None
        self.most_rss = 0
        self.slept = 0.0
        self.signals: list[events.Signalled] = []
        self.suspended = False
        self.quiet: events.Quiet | None = None
        self.stacks: events.Stacks | None = None
        self.ended: events.AttemptEnded | None = None
        self.vaulted: events.Vaulted | None = None
        self.decision: Decision | None = None
        self.findings: list[Finding] = []

    @property
    def steps(self) -> int:
        """Steps that this attempt itself took."""
        return 0 if self.first_step is None else self.last_step - self.first_step + 1

    def found(self, rule: str) -> Finding | None:
        return next((finding for finding in reversed(self.findings) if finding.rule == rule), None)


class Picture:
    """A whole run."""

    def __init__(self) -> None:
        self.started: events.RunStarted | None = None
        self.attempts: list[AttemptPicture] = []
        self.ended: events.RunEnded | None = None
        self.loss = Series()
        """Over all attempts, by the run's own step numbers; steps done again after a restart count again."""
        self.last_at = 0.0
        self.away = 0.0
        """Seconds in which nobody supervised: between a stop and its resume."""

    @property
    def attempt(self) -> AttemptPicture:
        """The newest."""
        return self.attempts[-1]

    @property
    def findings(self) -> list[Finding]:
        return [finding for attempt in self.attempts for finding in attempt.findings]

    def fold(self, entry: Entry) -> None:
        event = entry.event
        if isinstance(event, events.RunContinued):
            self.away += max(0.0, event.at - self.last_at)
        self.last_at = max(self.last_at, event.at)
        if isinstance(event, events.AttemptStarted):
            self.attempts.append(AttemptPicture(event))
            self.ended = None
        elif isinstance(event, events.RunStarted):
            self.started = event
        elif isinstance(event, events.RunEnded):
            self.ended = event
        elif self.attempts:
            self._fold_into(self.attempt, entry)

    def _fold_into(self, attempt: AttemptPicture, entry: Entry) -> None:
        event = entry.event
        if isinstance(event, events.Hello) and not (entry.primary and entry.rank == 0):
            attempt.others.append(event)
        elif entry.rank is not None and not (entry.primary and entry.rank == 0):
            # Rank 0 is the run's clock. What the other ranks wrote stays in the journal for the rules that compare them.
            return
        elif isinstance(event, (events.Step, events.Steps)):
            self._fold_steps(attempt, event)
        else:
            fold = _FOLDS.get(type(event))
            if fold is not None:
                fold(attempt, event)

    def _fold_steps(self, attempt: AttemptPicture, event: events.Step | events.Steps) -> None:
        first, last = (event.step, event.step) if isinstance(event, events.Step) else (event.first, event.last)
        if attempt.first_step is None:
            attempt.first_step = first
            attempt.first_step_at = event.at
        attempt.last_step = max(attempt.last_step, last)
        attempt.step_seconds += event.seconds
        attempt.data_wait += event.data_wait
        if isinstance(event, events.Steps):
            attempt.gradient_seen |= event.grad_norm is not None and event.grad_norm.high > 0
        else:
            attempt.gradient_seen |= bool(as_finite(event.grad_norm))
        nothing_but_zeros = attempt.loss.count == attempt.loss.zeros
        for series in (self.loss, attempt.loss):
            if isinstance(event, events.Step):
                loss = events.as_number(event.loss)
                if loss is not None:
                    series.add(last, loss)
            elif event.loss is not None:
                of = event.loss
                series.add_many(
                    last, n=of.n, mean=of.mean, low=of.low, high=of.high, zeros=of.zeros, last=of.last, bad=of.bad
                )
        if nothing_but_zeros and attempt.loss.count == attempt.loss.zeros:
            attempt.loss_at_zero_from_the_start = attempt.loss.zeros


def _hello(attempt: AttemptPicture, event: events.Hello) -> None:
    attempt.hello = event
    attempt.torch = event.torch


def _observed(attempt: AttemptPicture, event: events.Observed) -> None:
    attempt.observed = event
    if event.kinds.get("ultralytics", "").startswith("seen"):
        attempt.adapter = "ultralytics"


def _torch_imported(attempt: AttemptPicture, event: events.TorchImported) -> None:
    attempt.torch = event.torch


def _sample(attempt: AttemptPicture, event: events.Sample) -> None:
    attempt.samples.append(event)
    least = attempt.least_available
    attempt.least_available = event.available if least is None else min(least, event.available)
    attempt.most_rss = max(attempt.most_rss, event.rss)


def _epoch(attempt: AttemptPicture, event: events.Epoch) -> None:
    if event.source != "loader":
        attempt.adapter = event.source
    attempt.epoch = event.epoch
    attempt.planned_epochs = event.planned


def _saved(attempt: AttemptPicture, event: events.Saved) -> None:
    attempt.saving_seconds += event.seconds
    if event.path is not None:
        attempt.saved.pop(event.path, None)
        attempt.saved[event.path] = event


def _ended(attempt: AttemptPicture, event: events.AttemptEnded) -> None:
    attempt.ended = event
    attempt.first_step = event.first_step if attempt.first_step is None else attempt.first_step
    attempt.last_step = max(attempt.last_step, event.last_step)


def _movement(attempt: AttemptPicture, event: events.Movement) -> None:
    if event.checked:  # at the very end the weights may be gone already
        attempt.movement = event


def _gradients(attempt: AttemptPicture, event: events.Gradients) -> None:
    attempt.gradient_seen |= bool(as_finite(event.norm))


def _evaluation(attempt: AttemptPicture, event: events.Evaluation) -> None:
    attempt.evaluation_seconds += event.seconds


def _slept(attempt: AttemptPicture, event: events.Slept) -> None:
    attempt.slept += event.seconds


_FOLDS: dict[type[events.Event], Callable[[AttemptPicture, Any], object]] = {
    events.Interpreter: lambda attempt, event: attempt.interpreters.append(event),
    events.TorchImported: _torch_imported,
    events.Hello: _hello,
    events.Observed: _observed,
    events.Epoch: _epoch,
    events.Gradients: _gradients,
    events.Evaluation: _evaluation,
    events.Metrics: lambda attempt, event: setattr(attempt, "metrics", event),
    events.Movement: _movement,
    events.Suspended: lambda attempt, _event: setattr(attempt, "suspended", True),
    events.Continued: lambda attempt, _event: setattr(attempt, "suspended", False),
    events.Schedule: lambda attempt, event: attempt.schedules.__setitem__(event.scheduler, event),
    events.Saved: _saved,
    events.Sample: _sample,
    events.Slept: _slept,
    events.Signalled: lambda attempt, event: attempt.signals.append(event),
    events.Quiet: lambda attempt, event: setattr(attempt, "quiet", event),
    events.Stacks: lambda attempt, event: setattr(attempt, "stacks", event),
    events.FindingMade: lambda attempt, event: attempt.findings.append(event.finding),
    events.AttemptEnded: _ended,
    events.Vaulted: lambda attempt, event: setattr(attempt, "vaulted", event),
    events.DecisionMade: lambda attempt, event: setattr(attempt, "decision", event.decision),
}


def picture_of(entries: Iterable[Entry]) -> Picture:
    picture = Picture()
    for entry in entries:
        picture.fold(entry)
    return picture

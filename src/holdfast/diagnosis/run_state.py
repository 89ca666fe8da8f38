"""The state of a run, accumulated from its events. Rules, policy, verdict and all views read it.

`fold` takes the entries of the journal one by one. The same journal always gives the same state, live or replayed.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Literal

import msgspec

from holdfast import frameworks
from holdfast.diagnosis.aggregators.batches import Batches
from holdfast.diagnosis.aggregators.checkpoints import CheckpointSaves, Snapshots
from holdfast.diagnosis.aggregators.gradients import Gradients
from holdfast.diagnosis.aggregators.losses import LearningRates, Losses
from holdfast.diagnosis.aggregators.memory import Memory
from holdfast.diagnosis.aggregators.metrics import Metrics
from holdfast.diagnosis.aggregators.timing import Timing
from holdfast.diagnosis.aggregators.weights import Weights
from holdfast.diagnosis.series import Series, span_of
from holdfast.schema import events
from holdfast.schema.devices import NO_DEVICE, parse_device
from holdfast.schema.verdicts import Action

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from holdfast.schema.devices import Device
    from holdfast.schema.verdicts import Decision, Finding, Severity
    from holdfast.storage.journal import Entry


class AttemptState:
    """One attempt: one process of the training, from its start to its end."""

    def __init__(self, started: events.AttemptStarted) -> None:
        self.number = started.attempt
        self.started = started
        self.interpreters: list[events.Interpreter] = []
        self.torch: str | None = None
        self.attached: events.ProbeAttached | None = None
        self.others: list[events.ProbeAttached] = []
        """Other training processes: other ranks, or several processes with the same rank."""
        self.coverage: events.Coverage | None = None
        self.framework: str | None = None
        """The framework, if one was recognised."""
        self.settings: dict[str, Any] = {}
        """The settings of the framework, if a framework knows them."""
        self.first_step: int | None = None
        self.first_step_at: float | None = None
        """The time when it was done."""
        self.first_step_s = 0.0
        self.last_step = started.resume.step if started.resume else 0
        self.epochs_before: int | None = 0
        """Epochs done before this attempt, if the count restarts in each attempt; None if unknown."""
        self.epoch: int | None = None
        self.planned_epochs: int | None = None
        self.losses = Losses()
        self.gradients = Gradients()
        self.weights = Weights()
        self.batches = Batches()
        self.metrics = Metrics()
        self.rates = LearningRates()
        self.saves = CheckpointSaves()
        self.pace = Timing()
        self.memory = Memory()
        self.snapshots = Snapshots()
        self.printed: dict[str, events.OutputMatched] = {}
        """Lines of output that match a rule's `words`: rule -> the newest line."""
        self.notes: list[events.ProbeNote] = []
        self.signals: list[events.Signalled] = []
        self.suspended = False
        self.no_progress: events.NoProgress | None = None
        self.stacks: events.Stacks | None = None
        self.ended: events.AttemptEnded | None = None
        self.backed_up: events.CheckpointsBackedUp | None = None
        self.reloaded: dict[str, events.Reloaded] = {}
        """Checkpoints that were read back after the attempt ended, by path."""
        self.decision: Decision | None = None
        self.restart_decision: Decision | None = None
        """The newest decision to continue. A later stop at the user's request does not revoke it."""
        self.findings: list[Finding] = []
        self.findings_left_out = 0
        """Number of dropped findings. Beyond `MAX_FINDINGS`, only the first and the last are kept; runs of Holdfast itself
        never have that many."""

    @property
    def steps(self) -> int:
        """The number of steps that this attempt itself has done."""
        return 0 if self.first_step is None else self.last_step - self.first_step + 1

    def find_device(self, settings: Mapping[str, Any]) -> Device:
        """Return the device that the process uses; with these settings, if it has not yet used an accelerator."""
        used = parse_device(self.memory.device.device) if self.memory.device is not None else NO_DEVICE
        named = parse_device(settings.get("device"))
        return used if used.kind.is_accelerator or not named.kind.name else named

    @property
    def resumed(self) -> events.Resume | None:
        """The point from which this attempt resumed. The process may report another snapshot than the supervisor knew of."""
        restored = self.snapshots.restored
        if restored is None:
            return self.started.resume
        return events.Resume(how="snapshot", checkpoint=restored.path, step=restored.step, why=restored.why)

    @property
    def starts_over(self) -> bool:
        return self.resumed is None or self.resumed.how == "start over"

    @property
    def loss(self) -> Series:
        return self.losses.whole

    @property
    def finished(self) -> bool:
        """Whether the process exited on its own, with code 0."""
        return self.ended is not None and self.ended.code == 0 and self.ended.stopped_by is None

    @property
    def takes_snapshots(self) -> bool:
        return self.coverage is not None and "snapshots" in self.coverage.seen

    def has_note(self, code: events.NoteCode) -> bool:
        return any(note.code == code for note in self.notes)

    def find_finding(self, rule: str) -> Finding | None:
        return next((finding for finding in reversed(self.findings) if finding.rule == rule), None)


class RunState:
    """A whole run."""

    def __init__(self) -> None:
        self.started: events.RunStarted | None = None
        self.attempts: list[AttemptState] = []
        self.ended: events.RunEnded | None = None
        self.loss = Series()
        """The losses of all attempts, by step number of the run. Steps repeated after a restart count again."""
        self.last_at = 0.0
        self.away = 0.0
        """Seconds in which nothing ran: from a stop, or from the last recorded event, to the resume."""
        self._record_ended_at: float | None = None
        """The time of the last event of an attempt whose end was not recorded."""

    @property
    def framework(self) -> str | None:
        """The framework that trains, if an attempt has shown one."""
        return next((attempt.framework for attempt in reversed(self.attempts) if attempt.framework), None)

    @property
    def attempt(self) -> AttemptState:
        """The newest attempt."""
        return self.attempts[-1]

    @property
    def ancestry(self) -> list[AttemptState]:
        """The attempts since the last start over, the newest last. Those before it belong to another training."""
        begins = [place for place, attempt in enumerate(self.attempts) if attempt.starts_over]
        return self.attempts[begins[-1] :] if begins else self.attempts

    @property
    def validated(self) -> list[Metrics]:
        """The results of the validations of this training, by attempt. See `over_attempts`."""
        return [attempt.metrics for attempt in self.ancestry]

    @property
    def last_step(self) -> int:
        """The last step of the run. An attempt that started over has its own count, which may be lower than before."""
        if not self.attempts:
            return 0
        return self.attempt.last_step if self.attempt.steps else max(attempt.last_step for attempt in self.attempts)

    @property
    def findings(self) -> list[Finding]:
        return [finding for attempt in self.attempts for finding in attempt.findings]

    @property
    def on_macos(self) -> bool:
        return self.started is not None and self.started.platform.lower().startswith(("macos", "darwin"))

    def get_limits(self, rule: str, limits: Mapping[str, float]) -> Mapping[str, float]:
        """Return the limits of a rule, with the values that the user set for this run."""
        tuning = self.started.tuning.get(rule) if self.started is not None else None
        if not tuning:
            return limits
        return {name: float(tuning.get(name, value)) for name, value in limits.items()}

    def most_severe(self, rule: str) -> Severity | Literal["off"]:
        """Return the highest severity that a rule may report in this run."""
        tuning = self.started.tuning.get(rule) if self.started is not None else None
        severity = tuning.get("severity", "fatal") if tuning else "fatal"
        return severity if severity in ("off", "note", "warn") else "fatal"  # type: ignore[return-value]

    def fold(self, entry: Entry) -> None:
        event = entry.event
        if isinstance(event, events.RunContinued):
            self.away += max(0.0, event.at - self.last_at)
            self._record_ended_at = self.last_at
            if self.attempts:
                self.attempt.signals.clear()  # a resume revokes earlier requests to stop
            if event.tuning is not None and self.started is not None:
                self.started = msgspec.structs.replace(
                    self.started,
                    memory_budget=event.memory_budget,
                    observe_only=event.observe_only,
                    tuning=event.tuning,
                )
        elif isinstance(event, events.AttemptEnded) and self._record_ended_at is not None and event.at < self.last_at:
            # The process may have run for a while after its last recorded event.
            self.away -= max(0.0, event.at - self._record_ended_at)
        self.last_at = max(self.last_at, event.at)
        if isinstance(event, events.AttemptStarted):
            self._record_ended_at = None
            self._start_attempt(event)
        elif isinstance(event, events.RunStarted):
            self.started = event
        elif isinstance(event, events.RunEnded):
            self.ended = event
        elif isinstance(event, events.FindingMade) and event.finding.retracted:
            self._retract(event.finding.rule)
        elif self.attempts:
            self._fold_into(self.attempt, entry)

    def _start_attempt(self, started: events.AttemptStarted) -> None:
        """Begin a new attempt. Discard the losses of a state that was given up, or of a training that starts over."""
        before = self.attempts[-1].restart_decision if self.attempts else None
        over = started.resume is None or started.resume.how == "start over"
        if over:
            self.loss = Series()
        elif before is not None and before.discard_from is not None and started.resume is not None:
            self.loss = self.loss.until(started.resume.step)
        attempt = AttemptState(started)
        attempt.epochs_before = self._count_epochs_before(started.resume)
        self.attempts.append(attempt)
        self.ended = None

    def _count_epochs_before(self, resume: events.Resume | None) -> int | None:
        """Return the epochs done before a resume, if the passes of the loader are counted from 1 again after it."""
        if resume is None or resume.how not in ("command", "environment"):
            return 0
        if not resume.step or any(attempt.epochs_before is None for attempt in self.ancestry):
            return None
        done = [
            epoch.epoch for attempt in self.ancestry for epoch in attempt.pace.epochs if epoch.last_step <= resume.step
        ]
        return max(done, default=0)

    def _retract(self, rule: str) -> None:
        for attempt in self.ancestry:
            attempt.findings = [made for made in attempt.findings if made.rule != rule or made.severity == "fatal"]

    def _fold_into(self, attempt: AttemptState, entry: Entry) -> None:
        event = entry.event
        if entry.rank is not None and not (entry.primary and entry.rank == 0):
            _fold_other_optimizers(attempt, event)
        elif isinstance(event, (events.Step, events.Steps)):
            self.loss.add_event(event, event.loss)
            _fold_steps(attempt, event)
        else:
            if isinstance(event, events.Epoch) and event.source == "loader" and attempt.epochs_before:
                event = msgspec.structs.replace(event, epoch=attempt.epochs_before + event.epoch)
            for fold in _FOLDS.get(type(event), ()):
                fold(attempt, event)


def _fold_other_optimizers(attempt: AttemptState, event: events.AnyEvent) -> None:
    """Fold an event of another rank or process: only what is compared with rank 0, whose steps are the run's steps."""
    if isinstance(event, events.ProbeAttached):
        _append_bounded(attempt.others, event, MAX_KEPT)
    elif isinstance(event, events.Checksum):
        _fold_checksum(attempt, event)


def _fold_steps(attempt: AttemptState, event: events.Step | events.Steps) -> None:
    first, last = span_of(event)
    if attempt.first_step is None:
        attempt.first_step = first
        attempt.first_step_at = event.at
        attempt.first_step_s = event.seconds
    attempt.last_step = max(attempt.last_step, last)
    attempt.losses.fold(event)
    attempt.gradients.fold_steps(event)
    attempt.batches.fold(event)
    attempt.rates.fold(event)
    attempt.pace.fold(event)


def _fold_attached(attempt: AttemptState, event: events.ProbeAttached) -> None:
    attempt.attached = event
    attempt.torch = event.torch


def _fold_coverage(attempt: AttemptState, event: events.Coverage) -> None:
    attempt.coverage = event
    attempt.framework = next((name for name in frameworks.names() if name in event.seen), attempt.framework)


def _fold_settings(attempt: AttemptState, event: events.Settings) -> None:
    attempt.settings = event.values
    if event.source in frameworks.names():
        attempt.framework = event.source


def _fold_restored(attempt: AttemptState, event: events.Restored) -> None:
    """Record the restored snapshot. Before the first step, set the step count to continue from it."""
    attempt.snapshots.restored = event
    if attempt.first_step is None:
        attempt.last_step = event.step


def _fold_epoch(attempt: AttemptState, event: events.Epoch) -> None:
    if event.source != "loader":
        attempt.framework = event.source
    elif attempt.epochs_before is None:
        return
    attempt.epoch = event.epoch
    attempt.planned_epochs = event.planned


def _fold_checksum(attempt: AttemptState, event: events.Checksum) -> None:
    attempt.weights.fold_checksum(event, attempt.attached.world_size if attempt.attached is not None else 0)


def _fold_finding(attempt: AttemptState, event: events.FindingMade) -> None:
    finding = event.finding
    if finding.updated:
        places = [place for place, made in enumerate(attempt.findings) if made.rule == finding.rule]
        if places:
            attempt.findings[places[-1]] = finding
            return
    attempt.findings_left_out += _append_bounded(attempt.findings, finding, MAX_FINDINGS)


def _put_bounded(items: dict[str, Any], key: str, item: Any) -> None:
    if len(items) < MAX_KEPT or key in items:
        items[key] = item


def _fold_ended(attempt: AttemptState, event: events.AttemptEnded) -> None:
    attempt.ended = event
    attempt.first_step = event.first_step if attempt.first_step is None else attempt.first_step
    attempt.last_step = max(attempt.last_step, event.last_step)


def _fold_decision(attempt: AttemptState, event: events.DecisionMade) -> None:
    attempt.decision = event.decision
    if event.decision.action is not Action.STOP:
        attempt.restart_decision = event.decision


MAX_NOTES = 64
MAX_FINDINGS = 1000
"""Findings of one attempt."""
MAX_KEPT = 1000
"""Events of one attempt, for each other kind of event whose events are kept individually."""


def _append_bounded(items: list[Any], item: Any, limit: int) -> int:
    """Append an item. Beyond `limit`, drop one from the middle. Return the number of dropped items."""
    items.append(item)
    if len(items) <= limit:
        return 0
    del items[limit // 2]
    return 1


Fold = Callable[[AttemptState, Any], object]
_FOLDS: dict[type[events.Event], tuple[Fold, ...]] = {
    events.Interpreter: (lambda attempt, event: _append_bounded(attempt.interpreters, event, MAX_KEPT),),
    events.TorchImported: (lambda attempt, event: setattr(attempt, "torch", event.torch),),
    events.ProbeAttached: (_fold_attached,),
    events.Coverage: (_fold_coverage,),
    events.Settings: (_fold_settings,),
    events.Epoch: (
        _fold_epoch,
        lambda attempt, event: attempt.batches.fold_epoch(event),
        lambda attempt, event: attempt.pace.fold_epoch(event),
        lambda attempt, event: attempt.memory.fold_epoch(event),
    ),
    events.Gradients: (lambda attempt, event: attempt.gradients.fold_sample(event),),
    events.Skipped: (lambda attempt, event: attempt.gradients.fold_skipped(event),),
    events.StaleGradients: (lambda attempt, event: attempt.gradients.fold_stale(event),),
    events.Graph: (lambda attempt, event: setattr(attempt.weights, "graph", event),),
    events.WeightUpdates: (lambda attempt, event: attempt.weights.fold_updates(event),),
    events.Frozen: (lambda attempt, event: attempt.weights.frozen.append(event),),
    events.Checksum: (_fold_checksum,),
    events.ProcessExiting: (lambda attempt, event: setattr(attempt.pace, "exiting_at", event.at),),
    events.Evaluation: (
        lambda attempt, event: attempt.pace.fold_evaluation(event),
        lambda attempt, event: attempt.memory.fold_evaluation(event),
    ),
    events.Metrics: (lambda attempt, event: attempt.metrics.fold(event),),
    events.Schedule: (lambda attempt, event: attempt.rates.schedules.update({event.scheduler: event}),),
    events.Saved: (
        lambda attempt, event: attempt.saves.fold(event),
        lambda attempt, event: attempt.pace.fold_pause(event, "saving"),
    ),
    events.Snapshot: (lambda attempt, event: attempt.snapshots.fold(event),),
    events.SnapshotFailed: (lambda attempt, event: setattr(attempt.snapshots, "failed", event),),
    events.SnapshotCorrupt: (lambda attempt, event: attempt.snapshots.corrupt.append(event),),
    events.Restored: (_fold_restored,),
    events.Replayed: (lambda attempt, event: setattr(attempt.snapshots, "replayed", event),),
    events.Memory: (lambda attempt, event: attempt.memory.fold_device(event),),
    events.Sample: (
        lambda attempt, event: attempt.memory.fold_sample(event, attempt.last_step, attempt.epoch),
        lambda attempt, event: attempt.pace.fold_sample(event),
    ),
    events.Slept: (lambda attempt, event: attempt.pace.fold_pause(event, "slept"),),
    events.ProbeNote: (lambda attempt, event: attempt.notes.append(event) if len(attempt.notes) < MAX_NOTES else None,),
    events.OutputMatched: (lambda attempt, event: _put_bounded(attempt.printed, event.rule, event),),
    events.Suspended: (lambda attempt, _event: setattr(attempt, "suspended", True),),
    events.Continued: (
        lambda attempt, _event: setattr(attempt, "suspended", False),
        lambda attempt, event: attempt.pace.fold_pause(event, "suspended"),
    ),
    events.Signalled: (lambda attempt, event: _append_bounded(attempt.signals, event, MAX_KEPT),),
    events.NoProgress: (lambda attempt, event: setattr(attempt, "no_progress", event),),
    events.Stacks: (lambda attempt, event: setattr(attempt, "stacks", event),),
    events.FindingMade: (_fold_finding,),
    events.AttemptEnded: (_fold_ended,),
    events.CheckpointsBackedUp: (lambda attempt, event: setattr(attempt, "backed_up", event),),
    events.Reloaded: (lambda attempt, event: _put_bounded(attempt.reloaded, event.path, event),),
    events.DecisionMade: (_fold_decision,),
}


def load_run_state(entries: Iterable[Entry]) -> RunState:
    state = RunState()
    for entry in entries:
        state.fold(entry)
    return state

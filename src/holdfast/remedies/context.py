"""The input of the remedy steps: a run with a finding, as an immutable value."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

from holdfast.diagnosis.exits import exception_words
from holdfast.diagnosis.rules import by_id
from holdfast.diagnosis.versions import versions_of
from holdfast.frameworks import by_name, find_framework
from holdfast.remedies.command_line import OTHER_NAMES, get_known_name, is_spelling, spelling_of, values_in
from holdfast.schema.devices import parse_device
from holdfast.schema.verdicts import Action, Change

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from holdfast.diagnosis.run_state import AttemptState, RunState
    from holdfast.diagnosis.versions import Version
    from holdfast.frameworks.base import Framework
    from holdfast.schema.plan import Plan
    from holdfast.schema.verdicts import Finding

_ALLOWED_WITH = dict.fromkeys(("nbs", "weight_decay", "accumulation", "lr0"), "batch")
"""Settings that are changed together with the batch so that the update stays the same. Permission for one covers both."""
_ENVIRONMENT = "environment."


class TriedRemedy(NamedTuple):
    """The cause of the end of an earlier attempt, and the changes that followed."""

    cause: str | None
    changes: tuple[Change, ...]


@dataclass(frozen=True, kw_only=True)
class RemedyContext:
    plan: Plan
    cause: str
    finding: Finding | None = None
    settings: Mapping[str, Any]
    """The known settings: those of the plan, overridden by those that the framework reported."""
    framework: Framework = field(default_factory=lambda: by_name(None))
    device: str = ""
    """The kind of device: `cpu`, `mps`, `cuda`; empty if unknown."""
    in_validation: bool = False
    """Whether the attempt ended during a validation."""
    validation_is_peak: bool = False
    """Whether any evaluation of this attempt used more memory than the training before it."""
    on_macos: bool = False
    torch: Version | None = None
    environment: Mapping[str, str]
    steps: int = 0
    """The number of steps that the attempt has done."""
    progressed: bool = False
    """Whether the attempt got further than any before it, counting only steps whose state is good."""
    kept: bool = False
    """Whether something was saved that could be resumed from."""
    tried: tuple[TriedRemedy, ...] = ()
    optimizer: str | None = None
    """The class of the optimizer that steps."""
    rate: float | None = None
    """The highest learning rate so far."""
    last_lines: tuple[str, ...] = ()

    @property
    def named_cause(self) -> str:
        """The code of the cause that the finding names; empty if it names none."""
        return self.finding.data.get("cause", "") if self.finding is not None else ""

    @property
    def on_accelerator(self) -> bool:
        return parse_device(self.device).kind.is_accelerator

    @property
    def shares_memory(self) -> bool:
        """Whether the device takes its memory from the machine's."""
        return parse_device(self.device).kind.shares_memory

    @property
    def changes(self) -> list[Change]:
        """All changes that remedies have made in this run, oldest first."""
        return [change for tried in self.tried for change in tried.changes]

    @property
    def batch(self) -> int | None:
        return _positive_int(self.settings.get("batch"))

    @property
    def workers(self) -> int:
        """The number of loader workers, if known; otherwise 0."""
        return max(0, self.framework.loader_workers(self.settings, self.device) or 0)

    @property
    def validation_batch(self) -> int | None:
        return self.plan.validation.batch or _positive_int(self.framework.validation_batch(self.settings))

    def number(self, name: str) -> float | None:
        value = self.settings.get(name)
        return value if isinstance(value, (int, float)) and not isinstance(value, bool) else None

    def original_value(self, name: str) -> Any:
        """Return the value of a setting before any remedy changed it."""
        before = (change.before for change in self.changes if self.get_name(change.setting) == name)
        return next(before, self.settings.get(name))

    def has_tried(self, changes: Sequence[Change]) -> bool:
        """Return whether all of these changes were already made in this run."""
        made = [(change.setting, change.after) for change in self.changes]
        return bool(changes) and all((change.setting, change.after) in made for change in changes)

    def sets(self, name: str, changes: Sequence[Change]) -> bool:
        return any(self.get_name(change.setting) == name for change in changes)

    def was_retried_unchanged(self) -> bool:
        """Return whether an earlier attempt that ended for this cause was followed by one with nothing changed."""
        return any(tried.cause == self.cause and not tried.changes for tried in self.tried)

    def may_change_setting(self, name: str) -> bool:
        """Return whether the user allows remedies to change this setting."""
        policy = self.plan.policy
        names = {name, name.partition(".")[0], name.removeprefix(_ENVIRONMENT)}
        if names & {OTHER_NAMES.get(known, known) for known in policy.never_change}:
            return False
        if policy.may_change is None:
            return True
        allowed = {OTHER_NAMES.get(known, known) for known in policy.may_change}
        return bool((names | {_ALLOWED_WITH.get(name, name)}) & allowed)

    def change(self, name: str, after: Any, *, why: str, costs: str = "") -> Change | None:
        """Return a change of one setting; None if it already has the value, must not change, or cannot be set from outside."""
        before, setting = self._get_value(name), self._get_spelling(name)
        if before == after or setting is None or not self.may_change_setting(name):
            return None
        return Change(setting=setting, before=before, after=after, why=why, costs=costs)

    def can_set(self, name: str) -> bool:
        return self.may_change_setting(name) and self._get_spelling(name) is not None

    def _get_value(self, name: str) -> Any:
        part, _, rest = name.partition(".")
        if name.startswith(_ENVIRONMENT):
            return self.environment.get(rest)
        if name == "validation.batch":
            return self.validation_batch
        if name == "validation.max_det":
            return self.plan.validation.max_det or self.settings.get("max_det")
        if part in ("validation", "clear_cache"):
            return getattr(getattr(self.plan, part), rest)
        return self.plan.assigner if name == "assigner" else self.settings.get(name)

    def _get_spelling(self, name: str) -> str | None:
        """Return the name for the change: that of the setting if the probe can set it, or else the spelling that the command uses."""
        if self.framework.overrides_settings or name.startswith(_ENVIRONMENT):
            return name
        return spelling_of(name, self.plan.command, self.plan.flags)

    def get_name(self, what: str) -> str:
        """Return Holdfast's name for the setting of a change."""
        by_flag = {spelling: OTHER_NAMES.get(name, name) for name, spelling in self.plan.flags.items()}
        return by_flag.get(what) or (get_known_name(what) if is_spelling(what) else None) or what


def build_remedy_context(state: RunState, plan: Plan, cause: str) -> RemedyContext:
    attempt = state.attempt
    framework = find_framework(state.framework or plan.trainer, plan.command)
    settings = _collect_settings(state, plan, framework)
    started = state.started
    highest = attempt.rates.highest
    return RemedyContext(
        plan=plan,
        cause=cause,
        finding=attempt.find_finding(cause),
        settings=settings,
        framework=framework,
        device=attempt.find_device(settings).kind.name,
        in_validation=_ended_in_validation(attempt, framework),
        validation_is_peak=any(
            evaluation.during.rss + evaluation.during.driver > evaluation.training.rss + evaluation.training.driver
            for evaluation in attempt.memory.evaluations
        ),
        on_macos=state.on_macos,
        torch=versions_of(state).torch,
        environment={**(started.environment if started is not None else {}), **plan.environment},
        steps=attempt.steps,
        progressed=_has_progressed(state, cause),
        kept=any(a.snapshots.newest is not None or a.saves.by_path for a in state.attempts),
        tried=tuple(_collect_tried(state)),
        optimizer=attempt.coverage.optimizers[0] if attempt.coverage and attempt.coverage.optimizers else None,
        rate=highest.highest if highest.count else None,
        last_lines=tuple(exception_words(attempt.ended)) if attempt.ended is not None else (),
    )


def _collect_settings(state: RunState, plan: Plan, framework: Framework) -> dict[str, Any]:
    """Return the reported settings; for those that were not reported, the values of the plan and the command."""
    known = {name: setting.default for name, setting in framework.setting_values.items()}
    known |= plan.settings
    if plan.trainer == "command":
        known |= values_in(plan.command, plan.flags)
    if not framework.overrides_settings:
        return known
    known |= plan.overrides
    reported = next((attempt for attempt in reversed(state.attempts) if attempt.settings), None)
    if reported is not None:
        known |= reported.settings
        if reported is not state.attempt:  # the newest attempt ended before it reported its settings
            known |= plan.overrides
    if lowered := framework.find_lowered_batch(state.attempt):
        known["batch"] = lowered
    return known


def _ended_in_validation(attempt: AttemptState, framework: Framework) -> bool:
    """Return whether the attempt failed during a validation.

    Either it failed after an epoch, before its evaluation or a further step was done, or a validator raised the exception.
    """
    ended = attempt.ended
    if ended is None or ended.stopped_by is not None or ended.planned:
        return False
    if framework.validator and any(framework.validator in line for line in exception_words(ended)):
        return True
    pace = attempt.pace
    if attempt.framework is None or not pace.epochs or pace.epochs[-1].last_step < attempt.last_step:
        return False
    evaluated = bool(pace.evaluations) and pace.evaluations[-1].step >= attempt.last_step
    # After the validation of the last epoch there is one more: best.pt is validated at the end.
    return not evaluated or attempt.epoch == attempt.planned_epochs


def _has_progressed(state: RunState, cause: str) -> bool:
    now = state.attempt
    before = [_last_good_step(attempt, cause) for attempt in state.attempts[:-1]]
    resumed = now.resumed
    return now.steps > 0 and _last_good_step(now, cause) > max([resumed.step if resumed is not None else 0, *before])


def _last_good_step(attempt: AttemptState, cause: str) -> int:
    """Return the last step whose state can be resumed from."""
    finding = attempt.find_finding(cause)
    rule = by_id().get(cause)
    if finding is None or rule is None or (finding.corrupt_from is None and rule.kind != "learning"):
        return attempt.last_step
    since = finding.corrupt_from if finding.corrupt_from is not None else (attempt.first_step or 0)
    return min(attempt.last_step, since - 1)


def _collect_tried(state: RunState) -> list[TriedRemedy]:
    decisions = [attempt.decision for attempt in state.attempts[:-1] if attempt.decision is not None]
    return [
        TriedRemedy(decision.cause, tuple(decision.changes))
        for decision in decisions
        if decision.action in (Action.RESTART, Action.RETRY) and (decision.changes or not decision.planned)
    ]


def _positive_int(value: Any) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) and value > 0 else None

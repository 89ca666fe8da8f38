"""What a rung may look at: a run that met a finding, as a frozen value."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

from holdfast.diagnosis.devices import device_kind
from holdfast.diagnosis.exits import exception_words
from holdfast.diagnosis.rules import by_id
from holdfast.diagnosis.versions import versions_of
from holdfast.remedies.command_line import OTHER_NAMES, known_as, spelling_of, values_in
from holdfast.schema.ultralytics_settings import SETTINGS
from holdfast.schema.verdicts import Action, Change

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from holdfast.diagnosis.run_state import AttemptState, RunState
    from holdfast.diagnosis.versions import Version
    from holdfast.schema.plan import Plan
    from holdfast.schema.verdicts import Finding

_LOWERED = re.compile(r"Reducing to batch=(\d+)")
_GOES_WITH = dict.fromkeys(("nbs", "weight_decay", "accumulation", "lr0"), "batch")
"""What is changed together with the batch so that the update stays what it was: whoever allows that allows this."""
_ENVIRONMENT = "environment."
_ON_HOST = ("cpu", "mps")
"""Where Ultralytics trains without loader workers and in full precision, whatever its settings say."""


class TriedRemedy(NamedTuple):
    """An earlier attempt of this run, and what followed it."""

    cause: str | None
    changes: tuple[Change, ...]


@dataclass(frozen=True, kw_only=True)
class RemedyContext:
    plan: Plan
    cause: str
    finding: Finding | None = None
    settings: Mapping[str, Any]
    """What is known of them: as the framework reported them, over those of the plan."""
    ultralytics: bool = False
    device: str = ""
    """Its kind: `cpu`, `mps`, `cuda`; empty where it is not known."""
    in_validation: bool = False
    """The attempt ended while it validated."""
    validation_is_peak: bool = False
    """Some evaluation of this attempt held more memory than the training before it."""
    on_macos: bool = False
    torch: Version | None = None
    environment: Mapping[str, str]
    steps: int = 0
    """That the attempt took."""
    progressed: bool = False
    """The attempt came further than any before it, as far as its state is sound."""
    kept: bool = False
    """Something was saved that could be gone on from."""
    tried: tuple[TriedRemedy, ...] = ()
    optimizer: str | None = None
    """The class that was seen to step."""
    rate: float | None = None
    """The highest learning rate that was seen."""
    last_words: tuple[str, ...] = ()

    @property
    def on_accelerator(self) -> bool:
        return self.device not in ("", "cpu")

    @property
    def changes(self) -> list[Change]:
        """All that remedies changed so far in this run, oldest first."""
        return [change for tried in self.tried for change in tried.changes]

    @property
    def batch(self) -> int | None:
        return _whole(self.settings.get("batch"))

    @property
    def workers(self) -> int:
        """Loader workers, as far as they are known."""
        if self.ultralytics and self.device in _ON_HOST:
            return 0
        return _whole(self.settings.get("workers")) or 0

    @property
    def validation_batch(self) -> int | None:
        """Ultralytics takes twice the training's."""
        if not self.ultralytics:
            return _whole(self.settings.get("validation.batch"))
        return self.plan.validation.batch or (2 * self.batch if self.batch else None)

    def number(self, name: str) -> float | None:
        value = self.settings.get(name)
        return value if isinstance(value, (int, float)) and not isinstance(value, bool) else None

    def began_with(self, name: str) -> Any:
        """What a setting was before any remedy changed it."""
        return next(
            (change.before for change in self.changes if self.named(change.setting) == name), self.settings.get(name)
        )

    def has_tried(self, changes: Sequence[Change]) -> bool:
        """Whether each of these was made before in this run: to make it again changes nothing."""
        made = [(change.setting, change.after) for change in self.changes]
        return bool(changes) and all((change.setting, change.after) in made for change in changes)

    def sets(self, name: str, changes: Sequence[Change]) -> bool:
        return any(self.named(change.setting) == name for change in changes)

    def again_before(self) -> bool:
        """Whether this cause was answered before by going on with nothing changed."""
        return any(tried.cause == self.cause and not tried.changes for tried in self.tried)

    def may(self, name: str) -> bool:
        """Whether the user lets remedies change this."""
        policy = self.plan.policy
        names = {name, name.partition(".")[0], name.removeprefix(_ENVIRONMENT)}
        if names & {OTHER_NAMES.get(known, known) for known in policy.never_change}:
            return False
        if policy.may_change is None:
            return True
        allowed = {OTHER_NAMES.get(known, known) for known in policy.may_change}
        return bool((names | {_GOES_WITH.get(name, name)}) & allowed)

    def change(self, name: str, after: Any, *, why: str, costs: str = "") -> Change | None:
        """One setting to another value; None where it is so already, may not be, or cannot be set from outside."""
        before = self._now(name)
        if before == after or not self.may(name):
            return None
        setting = self._what(name)
        return (
            Change(setting=setting, before=before, after=after, why=why, costs=costs) if setting is not None else None
        )

    def can_set(self, name: str) -> bool:
        return self.may(name) and self._what(name) is not None

    def _now(self, name: str) -> Any:
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

    def _what(self, name: str) -> str | None:
        """What the change is told by: the setting where Ultralytics trains, else the command's own word for it."""
        if self.ultralytics or name.startswith(_ENVIRONMENT):
            return name
        return spelling_of(name, self.plan.command, self.plan.flags)

    def named(self, what: str) -> str:
        """Our name for what a change was told by."""
        named = {spelling: OTHER_NAMES.get(name, name) for name, spelling in self.plan.flags.items()}
        return named.get(what) or (known_as(what) if what.startswith("-") or what.endswith("=") else None) or what


def build_remedy_context(state: RunState, plan: Plan, cause: str) -> RemedyContext:
    attempt = state.attempt
    ultralytics = _is_ultralytics(state, plan)
    settings = _settings(state, plan, ultralytics=ultralytics)
    started = state.started
    highest = attempt.rates.highest
    return RemedyContext(
        plan=plan,
        cause=cause,
        finding=attempt.found(cause),
        settings=settings,
        ultralytics=ultralytics,
        device=device_kind(attempt, settings),
        in_validation=_in_validation(attempt),
        validation_is_peak=any(
            one.during.rss + one.during.driver > one.training.rss + one.training.driver
            for one in attempt.memory.evaluations
        ),
        on_macos=state.on_macos,
        torch=versions_of(state).torch,
        environment={**(started.environment if started is not None else {}), **plan.environment},
        steps=attempt.steps,
        progressed=_progressed(state, cause),
        kept=any(each.snapshots.newest is not None or each.saves.by_path for each in state.attempts),
        tried=tuple(_tried(state)),
        optimizer=attempt.coverage.optimizers[0] if attempt.coverage and attempt.coverage.optimizers else None,
        rate=highest.highest if highest.count else None,
        last_words=tuple(exception_words(attempt.ended)) if attempt.ended is not None else (),
    )


def _is_ultralytics(state: RunState, plan: Plan) -> bool:
    seen = any(attempt.adapter == "ultralytics" or attempt.settings for attempt in state.attempts)
    return plan.trainer == "ultralytics" or seen or _is_yolo(plan.command)


def _is_yolo(command: Sequence[str]) -> bool:
    return bool(command) and command[0].rpartition("/")[2] == "yolo"


def _settings(state: RunState, plan: Plan, *, ultralytics: bool) -> dict[str, Any]:
    """As reported, where they were; what the plan and the command say, where they were not."""
    known: dict[str, Any] = {}
    if plan.trainer == "ultralytics" or _is_yolo(plan.command):
        known = {name: setting.default for name, setting in SETTINGS.items()}
    known |= plan.settings
    if plan.trainer == "command":
        known |= values_in(plan.command, plan.flags)
    if not ultralytics:
        return known
    known |= plan.overrides
    reported = next((attempt for attempt in reversed(state.attempts) if attempt.settings), None)
    if reported is not None:
        known |= reported.settings
        if reported is not state.attempt:  # the newest did not live to report what it was given since
            known |= plan.overrides
    if lowered := _lowered_by_itself(state.attempt):
        known["batch"] = lowered
    return known


def _lowered_by_itself(attempt: AttemptState) -> int | None:
    """Ultralytics halves the batch where the first epoch does not fit, and tells nobody but its log."""
    line = attempt.printed.get("device-out-of-memory")
    found = _LOWERED.search(line.text) if line is not None else None
    return int(found[1]) if found else None


def _in_validation(attempt: AttemptState) -> bool:
    """It died after an epoch, and neither its evaluation nor a further step was done; or the exception came out of a validator."""
    ended = attempt.ended
    if ended is None or ended.stopped_by is not None or ended.planned:
        return False
    if any("ultralytics/engine/validator.py" in line for line in exception_words(ended)):
        return True
    pace = attempt.pace
    if attempt.adapter is None or not pace.epochs or pace.epochs[-1].last_step < attempt.last_step:
        return False
    evaluated = bool(pace.evaluations) and pace.evaluations[-1].step >= attempt.last_step
    # After the last epoch's own there is one more: best.pt is validated at the end.
    return not evaluated or attempt.epoch == attempt.planned_epochs


def _progressed(state: RunState, cause: str) -> bool:
    now = state.attempt
    before = [_sound_until(attempt, cause) for attempt in state.attempts[:-1]]
    resumed = now.resumed
    return now.steps > 0 and _sound_until(now, cause) > max([resumed.step if resumed is not None else 0, *before])


def _sound_until(attempt: AttemptState, cause: str) -> int:
    """The last step whose state can be gone on from."""
    finding = attempt.found(cause)
    rule = by_id().get(cause)
    if finding is None or rule is None or (finding.corrupt_from is None and rule.kind != "learning"):
        return attempt.last_step
    since = finding.corrupt_from if finding.corrupt_from is not None else (attempt.first_step or 0)
    return min(attempt.last_step, since - 1)


def _tried(state: RunState) -> list[TriedRemedy]:
    decisions = [attempt.decision for attempt in state.attempts[:-1] if attempt.decision is not None]
    return [
        TriedRemedy(decision.cause, tuple(decision.changes))
        for decision in decisions
        if decision.action in (Action.RESTART, Action.RETRY) and (decision.changes or not decision.planned)
    ]


def _whole(value: Any) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) and value > 0 else None

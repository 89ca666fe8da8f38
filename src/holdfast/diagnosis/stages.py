"""A run with several stages: its state from the journal, the result of a stage, and whether the next stage may start."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

from holdfast.diagnosis.aggregators.metrics import over_attempts
from holdfast.diagnosis.checkpoints import last_good
from holdfast.schema import events
from holdfast.schema.verdicts import Outcome, Verdict

if TYPE_CHECKING:
    from collections.abc import Iterable

    from holdfast.diagnosis.aggregators.metrics import Metrics
    from holdfast.diagnosis.run_state import RunState
    from holdfast.schema.plan import Gate
    from holdfast.schema.verdicts import Change
    from holdfast.storage.journal import Entry

SCORE = "mAP50-95"
"""The metric that stages are compared by."""
FINISHED = (Outcome.LEARNED.value, Outcome.UNPROVEN.value)


@dataclass
class StageState:
    """The state of one stage."""

    number: int
    name: str
    started: events.StageStarted | None = None
    ended: events.StageEnded | None = None
    left_out: events.StageLeftOut | None = None

    @property
    def passed(self) -> bool:
        """Whether the stage is complete and the next may start."""
        if self.left_out is not None:
            return True
        return self.ended is not None and self.ended.verdict in FINISHED and self.ended.gate == "open"


@dataclass
class StagedRun:
    stages: list[StageState] = field(default_factory=list)
    started: events.RunStarted | None = None
    ended: events.RunEnded | None = None

    def stage(self, number: int, name: str) -> StageState:
        """Return the stage with this number. Add it if it is new."""
        found = next((stage for stage in self.stages if stage.number == number), None)
        if found is None:
            found = StageState(number, name)
            self.stages.append(found)
        return found

    def done_with(self, number: int) -> bool:
        """Return whether a stage passed. A skipped stage is measured again, unless a later stage has started."""
        found = next((stage for stage in self.stages if stage.number == number), None)
        later = any(stage.started is not None for stage in self.stages if stage.number > number)
        return found is not None and found.passed and (found.left_out is None or later)

    @property
    def best(self) -> events.StageEnded | None:
        return self.best_before(1 + max((stage.number for stage in self.stages), default=0))

    def best_before(self, number: int) -> events.StageEnded | None:
        """Return the stage before this one with the best result; of stages that cannot be compared, the newest."""
        done = [stage.ended for stage in self.stages if stage.number < number and stage.passed and stage.ended]
        return max(done, key=lambda ended: (ended.score or 0.0, ended.stage), default=None)


def load_staged_run(entries: Iterable[Entry]) -> StagedRun:
    staged_run = StagedRun()
    for entry in entries:
        event = entry.event
        if isinstance(event, events.RunStarted):
            staged_run.started = event
        elif isinstance(event, events.RunEnded):
            staged_run.ended = event
        elif isinstance(event, events.StageStarted):
            stage = staged_run.stage(event.stage, event.name)
            stage.started, stage.ended, stage.left_out = event, None, None
            staged_run.ended = None
        elif isinstance(event, events.StageEnded):
            staged_run.stage(event.stage, event.name).ended = event
        elif isinstance(event, events.StageLeftOut):
            staged_run.stage(event.stage, event.name).left_out = event
    return staged_run


CARRIED = re.compile(
    r"device|assigner|amp|workers|cache|plots|batch|nbs|weight_decay|(validation|clear_cache|environment)\..*|-.*|.*="
)
"""Changes that depend on this machine or this data: the next stage would need them again. Image sizes and learning rates
belong to each stage."""


def collect_carried_changes(states: Iterable[RunState]) -> list[Change]:
    """Return the changes that earlier stages had to make, the newest for each setting."""
    changes: dict[str, Change] = {}
    for state in states:
        for attempt in state.attempts:
            for change in attempt.started.changes:
                if CARRIED.fullmatch(change.setting):
                    changes[change.setting] = change
    return list(changes.values())


class Result(NamedTuple):
    """The result of a stage."""

    metric: str | None
    reached: float | None
    score: float | None
    best: str | None
    last: str | None
    folder: str | None


def result_of(state: RunState, metric: str) -> Result:
    """Return the best value of a metric during the stage, and the files that the stage produced."""
    values = _get_values(state, metric)
    saved = {re.split(r"[\\/]", path)[-1]: path for attempt in state.attempts for path in attempt.saves.by_path}
    good = last_good(state)
    last = saved.get("last.pt") or (good.path if good is not None else None)
    folder = next((a.settings.get("save_dir") for a in reversed(state.attempts) if a.settings.get("save_dir")), None)
    return Result(
        metric=metric if values else None,
        reached=max(values, default=None),
        score=max(_get_values(state, SCORE), default=None),
        best=saved.get("best.pt") or last,
        last=last,
        folder=str(folder) if folder is not None else None,
    )


def _get_values(state: RunState, metric: str) -> list[float]:
    several = state.validated
    if metric in ("F1", "F2"):
        weight = 1.0 if metric == "F1" else 4.0
        pairs = zip(_get_track(several, "precision"), _get_track(several, "recall"), strict=False)
        return [(1 + weight) * p * r / (weight * p + r) if p and r else 0.0 for p, r in pairs]
    return _get_track(several, metric)


def _get_track(several: list[Metrics], metric: str) -> list[float]:
    """Return a metric by its common name: Ultralytics calls mAP50 `metrics/mAP50(B)`."""
    wanted = re.compile(r"(?:metrics/)?" + re.escape(metric) + r"(?:\([A-Z]\))?", re.IGNORECASE)
    names = [name for metrics in several for name in metrics.names() if wanted.fullmatch(name)]
    return over_attempts(several, names[0]).values if names else []


def check_gate(gate: Gate, result: Result, before: events.StageEnded | None) -> tuple[bool, str]:
    """Return whether the next stage may start, and why."""
    if result.reached is None:
        if gate.at_least is None and not gate.must_improve:
            return True, f"no {gate.metric} was recorded, and the plan does not require one"
        return False, f"no {gate.metric} was recorded, and the plan requires one"
    reached = f"reached {gate.metric} {result.reached:.4g}"
    if gate.at_least is None and result.reached <= 0.0:
        return False, f"{reached}: nothing was learned that the next stage could build on"
    if gate.at_least is not None and result.reached < gate.at_least:
        return False, f"{reached}; the plan requires {gate.at_least:g}"
    if before is None or before.score is None or result.score is None:
        return True, reached
    by = "" if gate.metric == SCORE else f"{SCORE} "
    now = "" if gate.metric == SCORE else f", {SCORE} {result.score:.4g}"
    compared = f"{reached}{now}; stage {before.name} reached {by}{before.score:.4g}"
    return (not gate.must_improve or result.score > before.score), compared


def verdict_of(staged_run: StagedRun) -> Verdict:
    """Return the verdict on the whole run, once no further stage follows."""
    ended = [stage.ended for stage in staged_run.stages if stage.ended is not None]
    if not ended:
        return Verdict(outcome=Outcome.FAILED, reason="no stage was completed", exit_status=4)
    last = ended[-1]
    if last.verdict not in FINISHED:
        reason = f"stage {last.name}: {last.reason}"
        return Verdict(outcome=Outcome(last.verdict), reason=reason, exit_status=last.exit_status)
    if last.gate == "closed":
        reason = f"the gate of stage {last.name} stayed closed: {last.gate_message}"
        return Verdict(outcome=Outcome.NOT_LEARNED, reason=reason, exit_status=3)
    outcome = Outcome.LEARNED if any(stage.verdict == Outcome.LEARNED for stage in ended) else Outcome.UNPROVEN
    return Verdict(outcome=outcome, reason=_summarize(staged_run, ended), exit_status=0)


def _summarize(staged_run: StagedRun, ended: list[events.StageEnded]) -> str:
    parts = [
        f"stage {end.name} reached {end.metric} {end.reached:.4g}"
        if end.reached is not None
        else f"stage {end.name} finished"
        for end in ended
    ]
    best = staged_run.best
    if best is not None and best is not ended[-1]:
        parts.append(f"the best result is that of stage {best.name}")
    parts += [
        f"{stage.name} was skipped ({stage.left_out.why})" for stage in staged_run.stages if stage.left_out is not None
    ]
    return "; ".join(parts)

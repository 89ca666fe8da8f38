"""The course of a run that has several stages: what its journal tells, what a stage reached, and whether the next may begin."""

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
"""What stages are compared by."""
FINISHED = (Outcome.LEARNED.value, Outcome.UNPROVEN.value)


@dataclass
class StageState:
    """One stage, as far as it has come."""

    number: int
    name: str
    started: events.StageStarted | None = None
    ended: events.StageEnded | None = None
    left_out: events.StageLeftOut | None = None

    @property
    def passed(self) -> bool:
        """It is done with, and the next may begin."""
        if self.left_out is not None:
            return True
        return self.ended is not None and self.ended.verdict in FINISHED and self.ended.gate == "open"


@dataclass
class StagedRun:
    stages: list[StageState] = field(default_factory=list)
    started: events.RunStarted | None = None
    ended: events.RunEnded | None = None

    def stage(self, number: int, name: str) -> StageState:
        """Known from now on."""
        found = next((stage for stage in self.stages if stage.number == number), None)
        if found is None:
            found = StageState(number, name)
            self.stages.append(found)
        return found

    def done_with(self, number: int) -> bool:
        """It passed. One that was left out is measured again, unless a later one has begun."""
        found = next((stage for stage in self.stages if stage.number == number), None)
        later = any(stage.started is not None for stage in self.stages if stage.number > number)
        return found is not None and found.passed and (found.left_out is None or later)

    @property
    def best(self) -> events.StageEnded | None:
        return self.best_before(1 + max((stage.number for stage in self.stages), default=0))

    def best_before(self, number: int) -> events.StageEnded | None:
        """The stage before this one whose result is the best; of several that cannot be compared, the newest."""
        done = [each.ended for each in self.stages if each.number < number and each.passed and each.ended is not None]
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
"""Changes that answer this machine or this data: the next stage would come to them again. Image sizes and rates are each stage's own."""


def carried_on(states: Iterable[RunState]) -> list[Change]:
    """What the stages before had to do otherwise, the newest of each."""
    made: dict[str, Change] = {}
    for state in states:
        for attempt in state.attempts:
            for change in attempt.started.changes:
                if CARRIED.fullmatch(change.setting):
                    made[change.setting] = change
    return list(made.values())


class Result(NamedTuple):
    """What a stage leaves behind."""

    metric: str | None
    reached: float | None
    score: float | None
    best: str | None
    last: str | None
    folder: str | None


def result_of(state: RunState, metric: str) -> Result:
    """The best of a metric while the stage trained, and the files that it leaves."""
    values = _values(state, metric)
    saved = {re.split(r"[\\/]", path)[-1]: path for attempt in state.attempts for path in attempt.saves.by_path}
    good = last_good(state)
    last = saved.get("last.pt") or (good.path if good is not None else None)
    folder = next((a.settings.get("save_dir") for a in reversed(state.attempts) if a.settings.get("save_dir")), None)
    return Result(
        metric=metric if values else None,
        reached=max(values, default=None),
        score=max(_values(state, SCORE), default=None),
        best=saved.get("best.pt") or last,
        last=last,
        folder=str(folder) if folder is not None else None,
    )


def _values(state: RunState, metric: str) -> list[float]:
    several = state.validated
    if metric in ("F1", "F2"):
        weight = 1.0 if metric == "F1" else 4.0
        pairs = zip(_track(several, "precision"), _track(several, "recall"), strict=False)
        return [(1 + weight) * p * r / (weight * p + r) if p and r else 0.0 for p, r in pairs]
    return _track(several, metric)


def _track(several: list[Metrics], metric: str) -> list[float]:
    """A metric by its name as people write it: Ultralytics calls its mAP50 `metrics/mAP50(B)`."""
    wanted = re.compile(r"(?:metrics/)?" + re.escape(metric) + r"(?:\([A-Z]\))?", re.IGNORECASE)
    names = [name for metrics in several for name in metrics.names() if wanted.fullmatch(name)]
    return over_attempts(several, names[0]).values if names else []


def gate(asked: Gate, result: Result, before: events.StageEnded | None) -> tuple[bool, str]:
    """Whether the next stage may begin, and why."""
    if result.reached is None:
        if asked.at_least is None and not asked.must_improve:
            return True, f"no {asked.metric} was seen: there is nothing to hold the gate against"
        return False, f"no {asked.metric} was seen, and the plan asks for one"
    said = f"{asked.metric} reached {result.reached:.4g}"
    if asked.at_least is None and result.reached <= 0.0:
        return False, f"{said}: nothing was learned that could be carried on"
    if asked.at_least is not None and result.reached < asked.at_least:
        return False, f"{said}; the plan asks for {asked.at_least:g}"
    if before is None or before.score is None or result.score is None:
        return True, said
    by = "" if asked.metric == SCORE else f"{SCORE} "
    now = "" if asked.metric == SCORE else f", {SCORE} {result.score:.4g}"
    compared = f"{said}{now}; stage {before.name} had reached {by}{before.score:.4g}"
    return (not asked.must_improve or result.score > before.score), compared


def verdict_of(staged_run: StagedRun) -> Verdict:
    """Of the whole run, once no further stage follows."""
    ended = [stage.ended for stage in staged_run.stages if stage.ended is not None]
    if not ended:
        return Verdict(outcome=Outcome.FAILED, reason="no stage was carried out", exit_status=4)
    last = ended[-1]
    if last.verdict not in FINISHED:
        reason = f"stage {last.name}: {last.reason}"
        return Verdict(outcome=Outcome(last.verdict), reason=reason, exit_status=last.exit_status)
    if last.gate == "closed":
        reason = f"the gate of stage {last.name} stayed closed: {last.gate_message}"
        return Verdict(outcome=Outcome.NOT_LEARNED, reason=reason, exit_status=3)
    outcome = Outcome.LEARNED if any(each.verdict == Outcome.LEARNED for each in ended) else Outcome.UNPROVEN
    return Verdict(outcome=outcome, reason=_story(staged_run, ended), exit_status=0)


def _story(staged_run: StagedRun, ended: list[events.StageEnded]) -> str:
    told = [
        f"{each.name} reached {each.metric} {each.reached:.4g}" if each.reached is not None else f"{each.name} finished"
        for each in ended
    ]
    best = staged_run.best
    if best is not None and best is not ended[-1]:
        told.append(f"the best is that of stage {best.name}")
    told += [
        f"{stage.name} was left out ({stage.left_out.why})" for stage in staged_run.stages if stage.left_out is not None
    ]
    return "; ".join(told)

"""A run of several stages, from the first to its verdict.

Each stage is a whole run in a folder of its own: supervised, judged and reported like any other, and gone on with at any point. Here it
is only decided which comes next, with which weights, and whether the one before opened its gate.
"""

from __future__ import annotations

import contextlib
import os
import signal
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

import msgspec

import holdfast
from holdfast.diagnosis.goodput import goodput_of
from holdfast.diagnosis.run_state import RunState, load_run_state
from holdfast.diagnosis.stages import (
    FINISHED,
    check_gate,
    collect_carried_changes,
    load_staged_run,
    result_of,
    verdict_of,
)
from holdfast.remedies import apply_changes
from holdfast.remedies.policy import is_over
from holdfast.schema import events
from holdfast.schema.errors import PlanInvalid, RunIsOver, UsageError
from holdfast.schema.verdicts import Change, Outcome, Verdict
from holdfast.storage.folder import RunFolder, make_stage, stage_folders
from holdfast.storage.journal import JournalWriter, replay
from holdfast.storage.lock import RunLock
from holdfast.storage.plan_copy import write_plan
from holdfast.storage.redact import redactor_for
from holdfast.supervisor import supervisor
from holdfast.supervisor.notify import Notifier
from holdfast.supervisor.stage_command import stage_plan
from holdfast.supervisor.supervisor import Deps

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from holdfast.diagnosis.stages import StagedRun
    from holdfast.schema.plan import Plan, Stage
    from holdfast.supervisor.event_pipeline import Listener

    Fits = Callable[[Plan], tuple[bool, str]]
    """Whether a stage fits into memory, as measured, and the figures."""
    ListenersOf = Callable[[RunFolder], Sequence[Listener]]
    """Those who want to hear of a stage's events."""
    Done = Callable[[RunFolder, Verdict], None]

T = TypeVar("T")


class Terminated(BaseException):
    """SIGTERM came where no stage runs that would answer it."""


class Stages:
    def __init__(
        self,
        run: RunFolder,
        plan: Plan,
        *,
        listeners: Sequence[Listener],
        listeners_of: ListenersOf,
        done: Done,
        fits: Fits,
        world: Deps | None = None,
    ) -> None:
        self._run = run
        self._plan = plan
        self._listeners = list(listeners)
        self._listeners_of = listeners_of
        self._done = done
        self._fits = fits
        self._world = world or Deps()
        self._redactor = redactor_for(plan, os.environ, [run.path])

    def carry_out(self) -> Verdict:
        """All stages that are not done yet, in order."""
        with RunLock(self._run):
            staged_run = load_staged_run(replay(self._run)) if self._run.journal.exists() else None
            self._refuse_if_over(staged_run)
            journal = JournalWriter(self._run.journal)
            notifier = Notifier(self._plan.on_event, self._run) if self._plan.on_event else None
            self._listeners += [notifier] if notifier is not None else []
            try:
                self._tell(journal, self._first_line(staged_run))
                staged_run = load_staged_run(replay(self._run))
                reached = self._all(staged_run, journal)
                self._tell(
                    journal,
                    events.RunEnded(
                        at=self._world.clock(),
                        verdict=reached.outcome.value,
                        reason=reached.reason,
                        exit_status=reached.exit_status,
                    ),
                )
                journal.sync()
            finally:
                journal.close()
                if notifier is not None:
                    notifier.close()
        return reached

    def _all(self, staged_run: StagedRun, journal: JournalWriter) -> Verdict:
        with _asked_to_end():
            try:
                for number, stage in enumerate(self._plan.stages, 1):
                    if staged_run.done_with(number):
                        continue
                    self._one(staged_run, journal, number, stage)
                    if not staged_run.stage(number, stage.name).passed:
                        break
            except KeyboardInterrupt:
                return Verdict(outcome=Outcome.INTERRUPTED, reason="interrupted by you between stages", exit_status=130)
            except Terminated:
                reason = "ended by SIGTERM to Holdfast between stages"
                return Verdict(outcome=Outcome.INTERRUPTED, reason=reason, exit_status=143)
        return verdict_of(staged_run)

    def _refuse_if_over(self, staged_run: StagedRun | None) -> None:
        if staged_run is None:
            return
        if staged_run.ended is not None and staged_run.ended.verdict in FINISHED:
            raise RunIsOver(
                f"The run {self._run.name} has finished ({staged_run.ended.verdict}): there is nothing to resume.",
                next_step="start a new one: holdfast run PLAN.toml",
                look_at=str(self._run.path),
            )
        self._refuse_if_stuck(staged_run)
        planned = {number: stage.name for number, stage in enumerate(self._plan.stages, 1)}
        for stage in staged_run.stages:
            if stage.started is not None and planned.get(stage.number) != stage.name:
                raise PlanInvalid(
                    f"Stage {stage.number} of this run is {stage.name}, and the plan now says {planned.get(stage.number)}.",
                    next_step="stages that have begun keep their place and name; others can be changed",
                    look_at=str(self._run.plan),
                )

    def _refuse_if_stuck(self, staged_run: StagedRun) -> None:
        """Its last stage has finished and does not let the next begin: to judge that again would only lengthen the record."""
        last = next((stage for stage in reversed(staged_run.stages) if stage.started is not None), None)
        if staged_run.ended is None or last is None or last.ended is None or last.number > len(self._plan.stages):
            return
        folder = RunFolder(self._run.stages / (last.started.folder if last.started is not None else ""))
        state = load_run_state(replay(folder)) if folder.journal.exists() else None
        if state is None or not is_over(state):
            return
        why, mend = f"stage {last.name} has finished ({last.ended.verdict})", "mend what its report names, then start"
        if last.ended.verdict in FINISHED:
            asked = self._plan.stages[last.number - 1].gate
            is_open, message = check_gate(asked, result_of(state, asked.metric), staged_run.best_before(last.number))
            if is_open:
                return
            why = f"the gate of stage {last.name} stays closed: {message}"
            mend = f"ask for less in the plan, then: holdfast resume {self._run.shell_reference} PLAN.toml; or start"
        raise RunIsOver(
            f"The run {self._run.name} cannot go on: {why}.",
            next_step=f"{mend} a new one: holdfast run PLAN.toml",
            look_at=str(self._run.path),
        )

    def _first_line(self, staged_run: StagedRun | None) -> events.AnyEvent:
        if staged_run is None or staged_run.started is None:
            return supervisor.introduction(self._run, self._plan, self._world)
        return events.RunContinued(at=self._world.clock(), supervisor=os.getpid(), holdfast=holdfast.__version__)

    def _one(self, staged_run: StagedRun, journal: JournalWriter, number: int, stage: Stage) -> None:
        weights = self._weights(staged_run, number, stage)
        carried = self._unharmed(
            journal,
            "looking at the stages before",
            lambda: collect_carried_changes(load_run_state(replay(folder)) for folder in self._others(number)),
            list[Change](),
        )
        plan = self._within_the_budget(number, apply_changes(stage_plan(self._plan, stage, weights), carried))
        said = ""
        if stage.skip_if_oom and staged_run.stage(number, stage.name).started is None:
            self._remark(journal, "measuring", f"whether stage {stage.name} fits into memory, by a short trial")
            fits, said = self._unharmed(journal, "measuring", lambda: self._fits(plan), (True, "it was not measured"))
            if not fits:
                left_out = events.StageLeftOut(at=self._world.clock(), stage=number, name=stage.name, why=said)
                staged_run.stage(number, stage.name).left_out = left_out
                self._tell(journal, left_out)
                return
        folder = make_stage(self._run, number, stage.name)
        started = events.StageStarted(
            at=self._world.clock(),
            stage=number,
            of=len(self._plan.stages),
            name=stage.name,
            folder=folder.path.name,
            settings={name: value for name, value in plan.settings.items() if isinstance(value, (int, float, str))},
            weights=weights,
            expects=said,
            again=staged_run.stage(number, stage.name).started is not None,
            changes=carried,
        )
        staged_run.stage(number, stage.name).started = started
        self._tell(journal, started)
        reached = self._supervised(journal, folder, plan)
        not_judged = events.StageEnded(
            at=self._world.clock(),
            stage=number,
            name=stage.name,
            verdict=reached.outcome.value,
            reason=reached.reason,
            exit_status=reached.exit_status,
            gate="closed" if reached.outcome.value in FINISHED else "",
            gate_message="what it reached could not be read: see the notes in the record",
        )
        ended = self._unharmed(
            journal,
            "judging the stage",
            lambda: self._ended(staged_run, folder, number, stage, reached),
            not_judged,
        )
        staged_run.stage(number, stage.name).ended = ended
        self._tell(journal, ended)

    def _unharmed(self, journal: JournalWriter, doing: str, do: Callable[[], T], default: T) -> T:
        """Between two stages a fault of Holdfast's own is noted; what a person can mend is still told."""
        try:
            return do()
        except UsageError:
            raise
        except Exception as error:  # noqa: BLE001
            self._remark(journal, f"a fault of Holdfast while {doing}", f"{type(error).__name__}: {error}")
            return default

    def _supervised(self, journal: JournalWriter, folder: RunFolder, plan: Plan) -> Verdict:
        """From its start, or from where it was left."""
        state = load_run_state(replay(folder)) if folder.journal.exists() else None
        if state is not None and state.ended is not None and is_over(state):
            ended = state.ended  # only the word of it was missing
            return Verdict(outcome=Outcome(ended.verdict), reason=ended.reason, exit_status=ended.exit_status)
        listeners = self._listeners_of(folder)
        if state is None or state.started is None:
            write_plan(folder, plan)
            reached = supervisor.start(folder, plan, listeners, self._world)
        else:
            reached = supervisor.take_over(folder, plan, listeners, self._world)
        self._unharmed(journal, "writing the stage's report", lambda: self._done(folder, reached), None)
        return reached

    def _ended(
        self, staged_run: StagedRun, folder: RunFolder, number: int, stage: Stage, reached: Verdict
    ) -> events.StageEnded:
        result = result_of(load_run_state(replay(folder)), stage.gate.metric)
        is_open, message = check_gate(stage.gate, result, staged_run.best_before(number))
        finished = reached.outcome.value in FINISHED
        return events.StageEnded(
            at=self._world.clock(),
            stage=number,
            name=stage.name,
            verdict=reached.outcome.value,
            reason=reached.reason,
            exit_status=reached.exit_status,
            metric=result.metric,
            reached=result.reached,
            score=result.score,
            gate=("open" if is_open else "closed") if finished else "",
            gate_message=message if finished else "",
            best=_there(result.best),
            last=_there(result.last),
            results=_there(result.folder),
        )

    def _weights(self, staged_run: StagedRun, number: int, stage: Stage) -> str | None:
        """Of the best stage so far, or the last of the one before, as the plan says."""
        start = stage.start or ("scratch" if number == 1 else "best")
        if start == "scratch":
            return None
        before = [each.ended for each in staged_run.stages if each.number < number and each.ended is not None]
        if start == "last" and before:
            return before[-1].last or before[-1].best
        best = staged_run.best_before(number)
        return (best.best or best.last) if best is not None else None

    def _within_the_budget(self, number: int, plan: Plan) -> Plan:
        """The hours of the whole run, less what other stages have used; a stage counts its own."""
        if plan.budget.hours is None:
            return plan
        used = sum(goodput_of(load_run_state(replay(folder))).wall_s for folder in self._others(number))
        left = max(plan.budget.hours - used / 3600.0, 0.0)
        return msgspec.structs.replace(plan, budget=msgspec.structs.replace(plan.budget, hours=left))

    def _others(self, number: int) -> list[RunFolder]:
        return [folder for folder in stage_folders(self._run) if int(folder.name.partition("-")[0]) != number]

    def _remark(self, journal: JournalWriter, what: str, detail: str) -> None:
        self._tell(journal, events.SupervisorNote(at=self._world.clock(), what=what, detail=detail))

    def _tell(self, journal: JournalWriter, event: events.Event) -> None:
        event = self._redactor.event(event)
        journal.append(event)
        for listener in self._listeners:
            try:
                listener(event, RunState())
            except Exception as error:  # noqa: BLE001 - who only listens must not cost anybody a training
                what = f"a fault of Holdfast while telling {type(listener).__name__}"
                journal.append(
                    events.SupervisorNote(at=self._world.clock(), what=what, detail=f"{type(error).__name__}: {error}")
                )


@contextlib.contextmanager
def _asked_to_end() -> Iterator[None]:
    """While no stage runs: SIGTERM ends it in an orderly way, and a terminal that is closed does not. A stage's own supervisor answers for itself."""

    def end(*_: object) -> None:
        raise Terminated

    before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGHUP)}
    signal.signal(signal.SIGTERM, end)
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _there(path: str | None) -> str | None:
    return path if path is not None and Path(path).exists() else None

"""Supervision of a run with several stages, from the first stage to the verdict.

Each stage is a complete run in its own folder: it is supervised, judged and reported like any other run, and can be resumed at any
point. This module only decides which stage comes next, which weights it starts with, and whether the previous stage passed its gate.
"""

from __future__ import annotations

import contextlib
import os
import signal
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

import msgspec

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
    """Measures whether a stage fits into memory; returns the answer and the figures."""
    ListenersOf = Callable[[RunFolder], Sequence[Listener]]
    """Returns the listeners to a stage's events."""
    Done = Callable[[RunFolder, Verdict], None]

T = TypeVar("T")


class Terminated(BaseException):
    """SIGTERM arrived while no stage was running to handle it."""


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
        deps: Deps | None = None,
    ) -> None:
        self._run = run
        self._plan = plan
        self._listeners = list(listeners)
        self._listeners_of = listeners_of
        self._done = done
        self._fits = fits
        self._deps = deps or Deps()
        self._redactor = redactor_for(plan, os.environ, [run.path])

    def run(self) -> Verdict:
        """Run all remaining stages in order."""
        with RunLock(self._run):
            staged_run = load_staged_run(replay(self._run)) if self._run.journal.exists() else None
            self._refuse_if_over(staged_run)
            journal = JournalWriter(self._run.journal)
            notifier = Notifier(self._plan.on_event, self._run) if self._plan.on_event else None
            self._listeners += [notifier] if notifier is not None else []
            try:
                self._emit(journal, self._first_event(staged_run))
                staged_run = load_staged_run(replay(self._run))
                verdict = self._run_stages(staged_run, journal)
                self._emit(
                    journal,
                    events.RunEnded(
                        at=self._deps.clock(),
                        verdict=verdict.outcome.value,
                        reason=verdict.reason,
                        exit_status=verdict.exit_status,
                    ),
                )
                journal.sync()
            finally:
                journal.close()
                if notifier is not None:
                    notifier.close()
        return verdict

    def _run_stages(self, staged_run: StagedRun, journal: JournalWriter) -> Verdict:
        with _handle_stop_signals():
            try:
                for number, stage in enumerate(self._plan.stages, 1):
                    if staged_run.done_with(number):
                        continue
                    self._run_stage(staged_run, journal, number, stage)
                    if not staged_run.stage(number, stage.name).passed:
                        break
            except KeyboardInterrupt:
                return Verdict(outcome=Outcome.INTERRUPTED, reason="interrupted by you between stages", exit_status=130)
            except Terminated:
                reason = "stopped because Holdfast received SIGTERM between stages"
                return Verdict(outcome=Outcome.INTERRUPTED, reason=reason, exit_status=143)
        return verdict_of(staged_run)

    def _refuse_if_over(self, staged_run: StagedRun | None) -> None:
        if staged_run is None:
            return
        if staged_run.ended is not None and staged_run.ended.verdict in FINISHED:
            raise RunIsOver(
                f"The run {self._run.name} has finished ({staged_run.ended.verdict}): there is nothing to resume.",
                next_step="start a new run: holdfast run PLAN.toml",
                look_at=str(self._run.path),
            )
        self._refuse_if_stuck(staged_run)
        planned = {number: stage.name for number, stage in enumerate(self._plan.stages, 1)}
        for stage in staged_run.stages:
            if stage.started is not None and planned.get(stage.number) != stage.name:
                raise PlanInvalid(
                    f"Stage {stage.number} of this run is {stage.name}, but the plan now names it {planned.get(stage.number)}.",
                    next_step="keep the position and name of stages that have started; other stages can be changed",
                    look_at=str(self._run.plan),
                )

    def _refuse_if_stuck(self, staged_run: StagedRun) -> None:
        """Raise if the last stage has finished and the next must not start. Judging it again would only lengthen the journal."""
        last = next((stage for stage in reversed(staged_run.stages) if stage.started is not None), None)
        if staged_run.ended is None or last is None or last.ended is None or last.number > len(self._plan.stages):
            return
        folder = RunFolder(self._run.stages / (last.started.folder if last.started is not None else ""))
        state = load_run_state(replay(folder)) if folder.journal.exists() else None
        if state is None or not is_over(state):
            return
        why, next_step = (
            f"stage {last.name} has finished ({last.ended.verdict})",
            "fix the problem described in its report, then start",
        )
        if last.ended.verdict in FINISHED:
            gate_settings = self._plan.stages[last.number - 1].gate
            is_open, message = check_gate(
                gate_settings, result_of(state, gate_settings.metric), staged_run.best_before(last.number)
            )
            if is_open:
                return
            why = f"the gate of stage {last.name} stays closed: {message}"
            next_step = (
                f"relax the gate in the plan, then: holdfast resume {self._run.shell_reference} PLAN.toml; or start"
            )
        raise RunIsOver(
            f"The run {self._run.name} cannot continue: {why}.",
            next_step=f"{next_step} a new run: holdfast run PLAN.toml",
            look_at=str(self._run.path),
        )

    def _first_event(self, staged_run: StagedRun | None) -> events.AnyEvent:
        if staged_run is None or staged_run.started is None:
            return supervisor.run_started_event(self._run, self._plan, self._deps)
        return supervisor.run_continued_event(self._plan, self._deps)

    def _run_stage(self, staged_run: StagedRun, journal: JournalWriter, number: int, stage: Stage) -> None:
        weights = self._choose_weights(staged_run, number, stage)
        carried_changes = self._run_safely(
            journal,
            "reading the previous stages",
            lambda: collect_carried_changes(load_run_state(replay(folder)) for folder in self._other_folders(number)),
            list[Change](),
        )
        plan = self._limit_budget(number, apply_changes(stage_plan(self._plan, stage, weights), carried_changes))
        measured = ""
        if stage.skip_if_oom and staged_run.stage(number, stage.name).started is None:
            self._note(journal, "measuring", f"whether stage {stage.name} fits into memory, with a short trial run")
            fits, measured = self._run_safely(
                journal, "measuring", lambda: self._fits(plan), (True, "it was not measured")
            )
            if not fits:
                left_out = events.StageLeftOut(at=self._deps.clock(), stage=number, name=stage.name, why=measured)
                staged_run.stage(number, stage.name).left_out = left_out
                self._emit(journal, left_out)
                return
        folder = make_stage(self._run, number, stage.name)
        started = events.StageStarted(
            at=self._deps.clock(),
            stage=number,
            of=len(self._plan.stages),
            name=stage.name,
            folder=folder.path.name,
            settings={name: value for name, value in plan.settings.items() if isinstance(value, (int, float, str))},
            weights=weights,
            expects=measured,
            again=staged_run.stage(number, stage.name).started is not None,
            changes=carried_changes,
        )
        staged_run.stage(number, stage.name).started = started
        self._emit(journal, started)
        verdict = self._supervise(journal, folder, plan)
        fallback = events.StageEnded(
            at=self._deps.clock(),
            stage=number,
            name=stage.name,
            verdict=verdict.outcome.value,
            reason=verdict.reason,
            exit_status=verdict.exit_status,
            gate="closed" if verdict.outcome.value in FINISHED else "",
            gate_message="its result could not be read: see the notes in the journal",
        )
        ended = self._run_safely(
            journal,
            "reading the result of the stage",
            lambda: self._stage_ended_event(staged_run, folder, number, stage, verdict),
            fallback,
        )
        staged_run.stage(number, stage.name).ended = ended
        self._emit(journal, ended)

    def _run_safely(self, journal: JournalWriter, doing: str, do: Callable[[], T], default: T) -> T:
        """Run `do`; if it raises, record a note and return `default`. Errors that the user can fix are still raised."""
        try:
            return do()
        except UsageError:
            raise
        except Exception as error:  # noqa: BLE001
            self._note(journal, f"an internal error in Holdfast while {doing}", f"{type(error).__name__}: {error}")
            return default

    def _supervise(self, journal: JournalWriter, folder: RunFolder, plan: Plan) -> Verdict:
        """Start the stage, or resume it."""
        state = load_run_state(replay(folder)) if folder.journal.exists() else None
        if state is not None and state.ended is not None and is_over(state):
            ended = state.ended  # only its StageEnded event was missing
            return Verdict(outcome=Outcome(ended.verdict), reason=ended.reason, exit_status=ended.exit_status)
        listeners = self._listeners_of(folder)
        if state is None or state.started is None:
            write_plan(folder, plan)
            verdict = supervisor.start(folder, plan, listeners, self._deps)
        else:
            verdict = supervisor.take_over(folder, plan, listeners, self._deps)
        self._run_safely(journal, "writing the stage's report", lambda: self._done(folder, verdict), None)
        return verdict

    def _stage_ended_event(
        self, staged_run: StagedRun, folder: RunFolder, number: int, stage: Stage, verdict: Verdict
    ) -> events.StageEnded:
        result = result_of(load_run_state(replay(folder)), stage.gate.metric)
        is_open, message = check_gate(stage.gate, result, staged_run.best_before(number))
        finished = verdict.outcome.value in FINISHED
        return events.StageEnded(
            at=self._deps.clock(),
            stage=number,
            name=stage.name,
            verdict=verdict.outcome.value,
            reason=verdict.reason,
            exit_status=verdict.exit_status,
            metric=result.metric,
            reached=result.reached,
            score=result.score,
            gate=("open" if is_open else "closed") if finished else "",
            gate_message=message if finished else "",
            best=_existing(result.best),
            last=_existing(result.last),
            results=_existing(result.folder),
        )

    def _choose_weights(self, staged_run: StagedRun, number: int, stage: Stage) -> str | None:
        """Return the weights to start from, as the plan says: those of the best stage so far, or the last of the previous stage."""
        start = stage.start or ("scratch" if number == 1 else "best")
        if start == "scratch":
            return None
        before = [other.ended for other in staged_run.stages if other.number < number and other.ended is not None]
        if start == "last" and before:
            return before[-1].last or before[-1].best
        best = staged_run.best_before(number)
        return (best.best or best.last) if best is not None else None

    def _limit_budget(self, number: int, plan: Plan) -> Plan:
        """Return the plan with the hours that the other stages have left. A stage counts its own hours itself."""
        if plan.budget.hours is None:
            return plan
        used = sum(goodput_of(load_run_state(replay(folder))).wall_s for folder in self._other_folders(number))
        left = max(plan.budget.hours - used / 3600.0, 0.0)
        return msgspec.structs.replace(plan, budget=msgspec.structs.replace(plan.budget, hours=left))

    def _other_folders(self, number: int) -> list[RunFolder]:
        return [folder for folder in stage_folders(self._run) if int(folder.name.partition("-")[0]) != number]

    def _note(self, journal: JournalWriter, what: str, detail: str) -> None:
        self._emit(journal, events.SupervisorNote(at=self._deps.clock(), what=what, detail=detail))

    def _emit(self, journal: JournalWriter, event: events.Event) -> None:
        event = self._redactor.event(event)
        journal.append(event)
        for listener in self._listeners:
            try:
                listener(event, RunState())
            except Exception as error:  # noqa: BLE001 - a failing listener must not cost a training
                what = f"an internal error in Holdfast while notifying {type(listener).__name__}"
                journal.append(
                    events.SupervisorNote(at=self._deps.clock(), what=what, detail=f"{type(error).__name__}: {error}")
                )


@contextlib.contextmanager
def _handle_stop_signals() -> Iterator[None]:
    """While no stage is running, stop cleanly on SIGTERM and ignore SIGHUP. During a stage, its supervisor handles signals."""

    def raise_terminated(*_: object) -> None:
        raise Terminated

    before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGHUP)}
    signal.signal(signal.SIGTERM, raise_terminated)
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _existing(path: str | None) -> str | None:
    return path if path is not None and Path(path).exists() else None

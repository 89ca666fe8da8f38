"""A run of several stages, from the first to its verdict.

Each stage is a whole run in a folder of its own: supervised, judged and reported like any other, and gone on with at any point. Here it
is only decided which comes next, with which weights, and whether the one before opened its gate.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

import holdfast
from holdfast.act import supervisor
from holdfast.act.stage_plan import stage_plan
from holdfast.act.supervisor import Surroundings
from holdfast.judge.course import FINISHED, course_of, gate, result_of, verdict_of
from holdfast.judge.picture import Picture, picture_of
from holdfast.record.folder import RunFolder, make_stage
from holdfast.record.journal import JournalWriter, replay
from holdfast.record.lock import RunLock
from holdfast.record.plan_file import write_plan
from holdfast.words import events
from holdfast.words.errors import RunIsOver
from holdfast.words.verdicts import Outcome, Verdict

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from holdfast.act.recorder import Listener
    from holdfast.judge.course import Course
    from holdfast.words.plan import Plan, Stage

    Fits = Callable[[Plan], tuple[bool, str]]
    """Whether a stage fits into memory, as measured, and the figures."""
    Begun = Callable[[RunFolder], Sequence[Listener]]
    """Told of each stage's folder as it begins; gives those who want to hear of its events."""
    Done = Callable[[RunFolder, Verdict], None]


class Stages:
    def __init__(
        self,
        run: RunFolder,
        plan: Plan,
        *,
        begun: Begun,
        done: Done,
        fits: Fits,
        world: Surroundings | None = None,
    ) -> None:
        self._run = run
        self._plan = plan
        self._begun = begun
        self._done = done
        self._fits = fits
        self._world = world or Surroundings()
        self._course = course_of(replay(run)) if run.journal.exists() else None

    def carry_out(self) -> Verdict:
        """All stages that are not done yet, in order."""
        with RunLock(self._run):
            course = self._begin()
            journal = JournalWriter(self._run.journal)
            try:
                for number, stage in enumerate(self._plan.stages, 1):
                    if course.stage(number, stage.name).passed:
                        continue
                    self._one(course, journal, number, stage)
                    if not course.stage(number).passed:
                        break
                reached = verdict_of(course)
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
        return reached

    def _begin(self) -> Course:
        course = self._course
        now = self._world.clock()
        journal = JournalWriter(self._run.journal)
        try:
            if course is None or course.started is None:
                journal.append(supervisor.introduction(self._run, self._plan, self._world))
            elif course.ended is not None and course.ended.verdict in FINISHED:
                raise RunIsOver(
                    f"The run {self._run.name} has finished ({course.ended.verdict}): there is nothing to resume.",
                    next_step="start a new one: holdfast run PLAN.toml",
                    look_at=str(self._run.path),
                )
            else:
                journal.append(events.RunContinued(at=now, supervisor=os.getpid(), holdfast=holdfast.__version__))
        finally:
            journal.close()
        return course_of(replay(self._run))

    def _one(self, course: Course, journal: JournalWriter, number: int, stage: Stage) -> None:
        weights = self._weights(course, number, stage)
        plan = self._within_the_budget(course, stage_plan(self._plan, stage, weights))
        said = ""
        if stage.if_it_fits and course.stage(number).started is None:
            fits, said = self._fits(plan)
            if not fits:
                left_out = events.StageLeftOut(at=self._world.clock(), stage=number, name=stage.name, why=said)
                course.stage(number).left_out = left_out
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
        )
        course.stage(number).started = started
        self._tell(journal, started)
        reached = self._supervised(folder, plan)
        ended = self._ended(course, folder, number, stage, reached)
        course.stage(number).ended = ended
        self._tell(journal, ended)

    def _supervised(self, folder: RunFolder, plan: Plan) -> Verdict:
        """From its start, or from where it was left."""
        picture = picture_of(replay(folder)) if folder.journal.exists() else None
        if picture is not None and picture.ended is not None and picture.ended.verdict in FINISHED:
            ended = picture.ended  # only the word of it was missing
            return Verdict(outcome=Outcome(ended.verdict), reason=ended.reason, exit_status=ended.exit_status)
        listeners = self._begun(folder)
        if picture is None or picture.started is None:
            write_plan(folder, plan)
            reached = supervisor.start(folder, plan, listeners, self._world)
        else:
            reached = supervisor.take_over(folder, plan, listeners, self._world)
        self._done(folder, reached)
        return reached

    def _ended(
        self, course: Course, folder: RunFolder, number: int, stage: Stage, reached: Verdict
    ) -> events.StageEnded:
        result = result_of(picture_of(replay(folder)), stage.gate.metric)
        is_open, says = gate(stage.gate, result, course.best_before(number))
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
            gate="open" if is_open or not finished else "closed",
            gate_says=says if finished else "",
            best=_there(result.best),
            last=_there(result.last),
            results=_there(result.folder),
        )

    def _weights(self, course: Course, number: int, stage: Stage) -> str | None:
        """Of the best stage so far, or the last of the one before, as the plan says."""
        start = stage.start or ("scratch" if number == 1 else "best")
        if start == "scratch":
            return None
        before = [each.ended for each in course.stages if each.number < number and each.ended is not None]
        if start == "last" and before:
            return before[-1].last or before[-1].best
        best = course.best_before(number)
        return (best.best or best.last) if best is not None else None

    def _within_the_budget(self, course: Course, plan: Plan) -> Plan:
        """What is left of the hours that the whole run has."""
        if plan.budget.hours is None or course.started is None:
            return plan
        left = plan.budget.hours - (self._world.clock() - course.started.at) / 3600.0
        return msgspec.structs.replace(plan, budget=msgspec.structs.replace(plan.budget, hours=max(left, 0.001)))

    def _tell(self, journal: JournalWriter, event: events.Event) -> None:
        journal.append(event)
        for listener in self._begun(self._run):
            listener(event, Picture())


def _there(path: str | None) -> str | None:
    return path if path is not None and Path(path).exists() else None

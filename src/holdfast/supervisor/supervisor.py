"""A run from its first attempt to its verdict.

    plan -> attempt -> events -> findings -> decision -> next attempt ... -> verdict

What was saved is kept safe before every restart, and every arrow is in the journal: a supervisor that was itself killed is
followed by another one that reads it (`take_over`).
"""

from __future__ import annotations

import contextlib
import errno
import os
import platform
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

import holdfast
from holdfast.diagnosis.causes import cause_of
from holdfast.diagnosis.engine import Engine
from holdfast.diagnosis.run_state import RunState, load_run_state
from holdfast.diagnosis.verdict import verdict
from holdfast.machine import this_machine
from holdfast.probe.holdfast_probe import heartbeat
from holdfast.process import process_events
from holdfast.process.child_process import ChildProcess
from holdfast.process.process_identity import AttemptProcesses, ProcessIdentity, identity_of, pid_space
from holdfast.process.sensors import ClockWatch, Sensors
from holdfast.process.terminal import Terminal
from holdfast.remedies import apply_changes, remedy_for
from holdfast.remedies.policy import (
    after_end,
    corrupt_from_of_last_attempt,
    corrupt_from_step,
    expected_attempt_seconds,
    is_over,
)
from holdfast.schema import events
from holdfast.schema.errors import CommandNotRunnable, FolderNotWritable, RunIsOver
from holdfast.schema.verdicts import Action, Change, Decision, Outcome, Verdict
from holdfast.storage import checkpoint_backup
from holdfast.storage.heartbeats import read_beats
from holdfast.storage.journal import JournalWriter, replay
from holdfast.storage.lock import RunLock
from holdfast.storage.redact import allowed_environment, redactor_for, restored
from holdfast.storage.stale_heartbeats import settle_stale
from holdfast.supervisor.attempt import Attempt
from holdfast.supervisor.child_env import environment
from holdfast.supervisor.cpu_validation import validation_of
from holdfast.supervisor.discard_snapshots import discard_corrupt
from holdfast.supervisor.event_pipeline import EventPipeline
from holdfast.supervisor.notify import Notifier
from holdfast.supervisor.orphan_cleanup import end_leftovers, find_unidentified
from holdfast.supervisor.resume_point import command_for, find_resume_point, saved_files
from holdfast.supervisor.verify_checkpoints import Reader

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from holdfast.diagnosis.run_state import AttemptState
    from holdfast.machine import Machine
    from holdfast.remedies import Remedy
    from holdfast.schema.plan import Plan
    from holdfast.storage.folder import AttemptFolder, RunFolder
    from holdfast.supervisor.event_pipeline import Listener

T = TypeVar("T")
FAILED = 4
"""The exit status of a run that failed."""
STARTS = 5
LOOK_S = 0.5
START_AGAIN_S = 5.0
"""After a kill for memory the system may be too busy to fork; that passes."""


@dataclass
class Deps:
    """What a supervisor touches of the world; tests put their own in its place."""

    machine: Machine = field(default_factory=this_machine)
    clock: Callable[[], float] = time.time
    monotonic: Callable[[], float] = time.monotonic


def start(run: RunFolder, plan: Plan, listeners: Sequence[Listener] = (), world: Deps | None = None) -> Verdict:
    """Supervise a fresh run to its end."""
    with RunLock(run):
        supervisor = Supervisor(run, plan, listeners, world or Deps(), RunState())
        supervisor.introduce()
        return supervisor.run_to_the_end(first=None)


def take_over(run: RunFolder, plan: Plan, listeners: Sequence[Listener] = (), world: Deps | None = None) -> Verdict:
    """Go on with a run whose supervisor is gone, or that was interrupted or failed."""
    with RunLock(run):
        world = world or Deps()
        state = load_run_state(restored(replay(run), redactor_for(plan, os.environ, [run.path])))
        if is_over(state) and state.ended is not None:
            learned_nothing = state.ended.verdict == Outcome.NOT_LEARNED
            raise RunIsOver(
                f"The run {run.name} has finished ({state.ended.verdict}): there is nothing to resume.",
                next_step=("mend what its report names, then " if learned_nothing else "")
                + "start a new one: holdfast run -- COMMAND",
                look_at=str(run.path),
            )
        supervisor = Supervisor(run, plan, listeners, world, state)
        return supervisor.go_on()


def introduction(run: RunFolder, plan: Plan, world: Deps) -> events.RunStarted:
    """What is known before anything starts."""
    return events.RunStarted(
        at=world.clock(),
        schema=events.SCHEMA,
        run=run.name,
        command=plan.command,
        cwd=plan.cwd,
        holdfast=holdfast.__version__,
        platform=platform.platform(),
        python=sys.version.split()[0],
        supervisor=os.getpid(),
        memory_total=world.machine.memory().limit,
        memory_budget=plan.budget.memory,
        observe_only=plan.observe_only,
        environment=allowed_environment(os.environ),
        tuning=plan.rules,
    )


class Supervisor:
    def __init__(self, run: RunFolder, plan: Plan, listeners: Sequence[Listener], world: Deps, state: RunState) -> None:
        self._run = run
        self._plan = plan
        self._world = world
        self._state = state
        self._journal = JournalWriter(run.journal)
        self._notifier = Notifier(plan.on_event, run) if plan.on_event else None
        self._reader = Reader()
        self._flushing = checkpoint_backup.Flushing()
        everyone: list[Listener] = [*listeners, self._reader, *([self._notifier] if self._notifier else [])]
        engine = Engine(state)
        self._recorder = EventPipeline(
            self._journal, engine, everyone, world.clock, redactor_for(plan, os.environ, [run.path])
        )
        self._attempts_left = plan.budget.attempts

    def introduce(self) -> None:
        """The first line of the journal."""
        self._recorder.record(introduction(self._run, self._plan, self._world))

    def go_on(self) -> Verdict:
        """After a takeover: close what the former supervisor left open, then the next attempt."""
        left_at = self._state.last_at
        self._recorder.record(
            events.RunContinued(at=self._world.clock(), supervisor=os.getpid(), holdfast=holdfast.__version__)
        )
        self._unharmed("ending what was left running", self._end_leftovers, None)
        if not self._state.attempts:
            return self.run_to_the_end(first=None)
        attempt = self._state.attempt
        if attempt.ended is None:
            self._recorder.record(self._end_of_an_orphan(left_at))
        elif attempt.ended.code == 0 and attempt.ended.stopped_by is None:
            return self.run_to_the_end(first=None, finished=True)  # only the verdict was missing
        self._keep_safe()
        for decided in [each.restart_decision for each in self._state.attempts if each.restart_decision is not None]:
            self._apply(decided.changes)
        corrupt = self._unharmed("deciding what is spoiled", lambda: corrupt_from_of_last_attempt(self._state), None)
        if corrupt is not None:
            self._forget_snapshots(corrupt)
        return self.run_to_the_end(first=self._where_to_resume(corrupt))

    def _unharmed(self, doing: str, do: Callable[[], T], default: T) -> T:
        """Between two attempts too, a fault of Holdfast's own is noted and must not cost anybody a training."""
        try:
            return do()
        except Exception as error:  # noqa: BLE001
            detail = f"{type(error).__name__}: {error}; the run goes on with what is known"
            self._note(f"a fault of Holdfast while {doing}", detail)
            return default

    def _where_to_resume(self, before: int | None) -> events.Resume:
        return self._unharmed(
            "deciding from where to resume",
            lambda: find_resume_point(self._state, self._plan, before),
            self._known_resume(before),
        )

    def _known_resume(self, before: int | None) -> events.Resume:
        """Where the attempt before began, which is known; what it saved since is not."""
        known = self._state.attempt.started.resume if self._state.attempts else None
        if known is not None and known.checkpoint is not None and (before is None or known.step < before):
            with contextlib.suppress(OSError, ValueError):
                if Path(known.checkpoint).exists():
                    return known
        return events.Resume(how="start over", why="it could not be decided from where to resume")

    def _apply(self, changes: list[Change]) -> None:
        self._plan = self._unharmed("changing the plan", lambda: apply_changes(self._plan, changes), self._plan)

    def _end_leftovers(self) -> None:
        """Nothing of the former supervisor's may run beside what we start; nobody else's process is touched."""
        open_attempt = self._state.attempt if self._state.attempts else None
        if open_attempt is not None and open_attempt.ended is not None:
            open_attempt = None  # what that one left behind on purpose goes on
        recorded = _recorded_process(open_attempt) if open_attempt is not None else None
        folders = self._unfinished_folders()
        if recorded is not None and recorded.is_in_another_namespace() and not AttemptProcesses(folders).find():
            self._note(
                "the former training was started in another PID namespace (a container) and may still run there",
                "it cannot be seen from here; if it does, end it there: it would write to the same files",
            )
        alive = end_leftovers(folders, [recorded] if recorded is not None else [], self._plan.grace_s)
        for pid in alive:
            self._note(f"process {pid} of the former attempt could not be ended", "it may still hold memory and files")
        unknown = find_unidentified(_mentioned(open_attempt), recorded) if open_attempt and recorded else []
        for pid in unknown:
            if pid not in alive:
                self._note(f"process {pid} may still be running", "it could not be identified, so it was left alone")

    def _unfinished_folders(self) -> list[Path]:
        """Of attempts that never ended, also of one whose supervisor died before it could write down that it had started it."""
        ended = [attempt.number for attempt in self._state.attempts if attempt.ended is not None]
        return [folder.path for folder in self._run.attempts() if folder.number > max(ended, default=0)]

    def _note(self, what: str, detail: str) -> None:
        self._recorder.record(events.SupervisorNote(at=self._world.clock(), what=what, detail=detail))

    def run_to_the_end(self, first: events.Resume | None, *, finished: bool = False) -> Verdict:
        try:
            with Terminal() as terminal, self._awake() as told:
                if told:
                    self._recorder.record(
                        events.SupervisorNote(at=self._world.clock(), what="keeping awake", detail=told)
                    )
                self._unharmed("settling old heartbeats", lambda: settle_stale(pid_space()), None)
                resume, changes = first, list[Change]()
                while not finished and self._attempt(resume, changes, terminal):
                    self._keep_safe()
                    decision, resume = self._decide()
                    if decision.action is Action.STOP or not self._waited(decision, terminal):
                        break
                    changes = decision.changes
                    self._carry_out(decision)
                self._unharmed("reading checkpoints back", lambda: self._read_back(terminal), None)
            self._have_flushed()
            return self._conclude()
        finally:
            with contextlib.suppress(Exception):
                self._reader.close()
            self._journal.close()
            with contextlib.suppress(Exception):
                if self._run.is_there():
                    heartbeat.settle(str(self._run.heartbeat))
            if self._notifier is not None:
                self._notifier.close()

    def _awake(self) -> contextlib.AbstractContextManager[str | None]:
        return self._world.machine.keep_awake() if self._plan.keep_awake else contextlib.nullcontext()

    def _decide(self) -> tuple[Decision, events.Resume]:
        remedy = self._unharmed("looking for a remedy", self._find_remedy, None)
        corrupt = self._unharmed("deciding what is spoiled", lambda: corrupt_from_step(self._state, remedy), None)
        resume = self._where_to_resume(corrupt)
        stop = Decision(action=Action.STOP, attempt=self._state.attempt.number, why="what follows could not be decided")
        decision = self._unharmed(
            "deciding what follows",
            lambda: after_end(self._state, self._plan, attempts_left=self._attempts_left, resume=resume, remedy=remedy),
            stop,
        )
        self._recorder.record(events.DecisionMade(at=self._world.clock(), decision=decision))
        return decision, resume

    def _find_remedy(self) -> Remedy | None:
        cause = cause_of(self._state.attempt)
        return remedy_for(self._state, self._plan, cause) if cause is not None and self._may_change() else None

    def _may_change(self) -> bool:
        return self._plan.on_finding == "act" and not self._plan.observe_only

    def _carry_out(self, decision: Decision) -> None:
        """The plan as the next attempt follows it."""
        self._apply(decision.changes)
        if decision.planned:
            self._attempts_left += 1
        if decision.discard_from is not None:
            self._forget_snapshots(decision.discard_from)

    def _forget_snapshots(self, since: int) -> None:
        """Spoiled ones, which the training would find and go on from; and the losses of what is given up."""
        if not self._run.is_there():
            return
        known = [snapshot for attempt in self._state.attempts for snapshot in attempt.snapshots.known]
        steps = {Path(snapshot.path): snapshot.step for snapshot in known}
        self._unharmed("removing spoiled snapshots", lambda: discard_corrupt(self._run.snapshots, steps, since), None)

    def _attempt(self, resume: events.Resume | None, changes: list[Change], terminal: Terminal) -> bool:
        """One attempt from start to end; False when it could not even be started again."""
        if self._state.attempts and not self._run.is_there():
            self._stop_here("its run folder was removed or replaced while it lived")
            return False
        number, folder = self._fresh_folder()
        try:
            command = command_for(self._plan, resume)
            environ = environment(self._run, self._plan, number, resume, life_s=expected_attempt_seconds(self._state))
            child = self._started(command, environ, folder, terminal)
        except CommandNotRunnable as error:
            if not self._state.attempts:
                raise
            self._stop_here(f"the command could not be started again: {error.what}")
            return False
        self._flushing.begin()  # now: no thread of ours may run while a process is started
        try:
            self._attempts_left -= 1
            identity = identity_of(child.pid)
            self._recorder.record(
                events.AttemptStarted(
                    at=self._world.clock(),
                    attempt=number,
                    pid=child.pid,
                    start=identity.start,
                    pid_space=identity.pid_space,
                    command=command,
                    resume=resume,
                    changes=changes,
                )
            )
            attempt = Attempt(
                number,
                run=self._run,
                plan=self._plan,
                recorder=self._recorder,
                child=child,
                machine=self._world.machine,
                sensors=Sensors(self._world.machine, lambda: [child.pid], self._run.path, self._world.clock),
                clock_watch=ClockWatch(self._world.machine.seconds_asleep, self._world.clock, self._world.monotonic),
                monotonic=self._world.monotonic,
                until=self._until(),
            )
            ended = attempt.live()
        except Exception as error:
            child.close()
            if not self._state.attempts or self._state.attempt.number != number:
                raise  # nothing is known of it, not even that it began
            ended = self._end_after_fault(child, error)
        finally:
            child.close()
        self._recorder.record(ended)
        self._recorder.sync()
        self._have_flushed()
        return True

    def _stop_here(self, why: str) -> None:
        stop = Decision(action=Action.STOP, attempt=self._state.attempt.number, why=why)
        self._recorder.record(events.DecisionMade(at=self._world.clock(), decision=stop))

    def _end_after_fault(self, child: ChildProcess, error: Exception) -> events.AttemptEnded:
        """It could not be watched any longer, and was ended."""
        self._note("a fault of Holdfast while watching the training", f"{type(error).__name__}: {error}; it was ended")
        attempt, exited = self._state.attempt, child.exited
        return events.AttemptEnded(
            at=self._world.clock(),
            attempt=attempt.number,
            code=exited.code if exited is not None else None,
            signal=exited.signal if exited is not None else None,
            first_step=attempt.first_step,
            last_step=attempt.last_step,
            seconds=max(0.0, self._world.clock() - attempt.started.at),
        )

    def _until(self) -> float | None:
        """When the time that the plan gives this run is used up; time without a supervisor does not count."""
        hours, started = self._plan.budget.hours, self._state.started
        return None if hours is None or started is None else started.at + self._state.away + hours * 3600.0

    def _fresh_folder(self) -> tuple[int, AttemptFolder]:
        """The next number that no attempt ever had, also none whose supervisor died before it wrote that down."""
        number = self._state.attempt.number + 1 if self._state.attempts else 1
        try:
            while (folder := self._run.make_attempt(number)) is None:
                number += 1
            heartbeat.create(str(self._run.heartbeat), pid_space=pid_space())
        except OSError as error:
            raise FolderNotWritable(
                f"The run folder cannot be written: {error.strerror}.",
                next_step=f"make room, then: holdfast resume {self._run.shell_reference}",
            ) from error
        return number, folder

    def _started(
        self, command: list[str], environ: dict[str, str], folder: AttemptFolder, terminal: Terminal
    ) -> ChildProcess:
        """Start it; where the system has no room for a process at this moment, after a while again."""
        for left in reversed(range(STARTS)):
            try:
                return ChildProcess.start(
                    command,
                    cwd=Path(self._plan.cwd),
                    env=environ,
                    stdout_log=folder.stdout_log,
                    stderr_log=folder.stderr_log,
                    terminal=terminal,
                )
            except CommandNotRunnable as error:
                passing = isinstance(error.__cause__, OSError) and error.__cause__.errno in (errno.EAGAIN, errno.ENOMEM)
                if not passing or not left or isinstance(terminal.wait(START_AGAIN_S), process_events.Interrupt):
                    raise
        raise AssertionError("unreachable")

    def _keep_safe(self) -> None:
        """Copy what the attempt saved before anything can overwrite it."""
        self._unharmed("copying what was saved", self._copy_saved, None)

    def _copy_saved(self) -> None:
        attempt = self._state.attempt
        files = saved_files(self._state, self._plan)
        finished = attempt.ended is not None and attempt.ended.code == 0
        if (
            attempt.backed_up is not None
            or not files
            or finished
            or self._plan.observe_only
            or not self._run.is_there()
        ):
            return
        kept, left_out = checkpoint_backup.keep(
            files, self._run.attempt(attempt.number).saved, base=Path(self._plan.cwd)
        )
        self._flushing.add(kept)
        self._recorder.record(
            events.CheckpointsBackedUp(at=self._world.clock(), attempt=attempt.number, files=kept, left_out=left_out)
        )

    def _have_flushed(self) -> None:
        for trouble in self._unharmed("putting copies onto the disk", self._flushing.end, list[str]()):
            self._recorder.record(
                events.SupervisorNote(at=self._world.clock(), what="a copy is not on the disk for sure", detail=trouble)
            )

    def _read_back(self, terminal: Terminal) -> None:
        """A checkpoint is worth something only if it loads again: tried right away, while it can still be mended."""
        if self._state.attempts and self._state.attempt.finished:
            for reloaded in self._reader.read_back(self._state, self._plan, self._world.clock):
                self._recorder.record(reloaded)
            self._validate_again(terminal)

    def _validate_again(self, terminal: Terminal) -> None:
        validation = validation_of(self._state, self._plan)
        if validation is None:
            return
        now = self._world.clock()
        self._recorder.record(
            events.SupervisorNote(at=now, what="validating best.pt on the CPU", detail=validation.why)
        )
        with validation:
            while not validation.over():
                notice = terminal.wait(LOOK_S)
                if isinstance(notice, (process_events.Interrupt, process_events.Terminate)):
                    self._stopped_by_hand(notice)
                    return
        self._recorder.record(validation.came_to(self._world.clock(), self._state.attempt.last_step))

    def _stopped_by_hand(self, notice: process_events.ProcessEvent) -> str:
        signal = "SIGINT" if isinstance(notice, process_events.Interrupt) else "SIGTERM"
        self._recorder.record(events.Signalled(at=self._world.clock(), signal=signal, action=events.NO_FURTHER_ATTEMPT))
        return signal

    def _waited(self, decision: Decision, terminal: Terminal) -> bool:
        """Wait before the next attempt; False when the user would rather not."""
        deadline = self._world.monotonic() + decision.wait_s
        while (left := deadline - self._world.monotonic()) > 0:
            notice = terminal.wait(left)
            if isinstance(notice, (process_events.Interrupt, process_events.Terminate)):
                signal = self._stopped_by_hand(notice)
                now = self._world.clock()
                stop = Decision(
                    action=Action.STOP, attempt=decision.attempt, why=f"{signal} while it waited", cause=decision.cause
                )
                self._recorder.record(events.DecisionMade(at=now, decision=stop))
                return False
        return True

    def _conclude(self) -> Verdict:
        reached = self._unharmed("judging the run", lambda: verdict(self._state), self._unjudged())
        self._recorder.record(
            events.RunEnded(
                at=self._world.clock(),
                verdict=reached.outcome.value,
                reason=reached.reason,
                proofs=reached.proofs,
                exit_status=reached.exit_status,
            )
        )
        self._recorder.sync()
        return reached

    def _unjudged(self) -> Verdict:
        reason = "the run could not be judged: a fault of Holdfast, see the notes in its record"
        if self._state.attempts and self._state.attempt.finished:
            return Verdict(outcome=Outcome.UNPROVEN, reason=reason)
        return Verdict(outcome=Outcome.FAILED, reason=reason, exit_status=FAILED)

    def _end_of_an_orphan(self, left_at: float) -> events.AttemptEnded:
        """What can still be known of an attempt whose supervisor was killed: its record ends at `left_at`, and it with its last sign of life."""
        attempt = self._state.attempt
        beat = read_beats(self._run).get(0)
        last_step = max(attempt.last_step, beat.step if beat is not None else 0)
        at = max(left_at, beat.step_at if beat is not None else 0.0)
        return events.AttemptEnded(
            at=at,
            attempt=attempt.number,
            code=None,
            first_step=attempt.first_step if attempt.first_step is not None else (1 if last_step else None),
            last_step=last_step,
            seconds=max(0.0, at - attempt.started.at),
            stopped_by="supervisor gone",
        )


def _recorded_process(attempt: AttemptState) -> ProcessIdentity:
    return ProcessIdentity(attempt.started.pid, attempt.started.start, attempt.started.pid_space)


def _mentioned(attempt: AttemptState) -> dict[int, float]:
    """Every pid that the record names, and when: the command itself, its interpreters, the ranks."""
    hellos = [attached for attached in (attempt.attached, *attempt.others) if attached is not None]
    named: list[tuple[int, float]] = [(attempt.started.pid, attempt.started.at)]
    named += [(interpreter.pid, interpreter.at) for interpreter in attempt.interpreters]
    named += [(attached.pid, attached.at) for attached in hellos]
    return dict(named)

"""Supervision of a run, from its first attempt to its verdict.

    plan -> attempt -> events -> findings -> decision -> next attempt ... -> verdict

Saved checkpoints are backed up before every restart. Every arrow is recorded in the journal, so that another supervisor can
read it and continue after a supervisor was killed (`take_over`).
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
from holdfast.process.process_identity import AttemptProcesses, ProcessIdentity, pid_space, read_identity
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
from holdfast.storage.redact import allowed_environment, redactor_for, restore_entries
from holdfast.storage.stale_heartbeats import settle_stale
from holdfast.supervisor.attempt import Attempt
from holdfast.supervisor.child_env import environment
from holdfast.supervisor.cpu_validation import make_validation
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
    from holdfast.machine.base import AwakeResult
    from holdfast.remedies import Remedy
    from holdfast.schema.plan import Plan
    from holdfast.storage.folder import AttemptFolder, RunFolder
    from holdfast.supervisor.event_pipeline import Listener

T = TypeVar("T")
FAILED = 4
"""The exit status of a run that failed."""
MAX_STARTS = 5
POLL_S = 0.5
START_RETRY_S = 5.0
"""After an out-of-memory kill, the system may temporarily be too busy to fork."""


@dataclass
class Deps:
    """The machine, clocks, terminal and processes that a supervisor uses; tests replace them."""

    machine: Machine = field(default_factory=this_machine)
    clock: Callable[[], float] = time.time
    monotonic: Callable[[], float] = time.monotonic
    open_terminal: Callable[[], Terminal] = Terminal
    start_child: Callable[..., ChildProcess] = ChildProcess.start


def start(run: RunFolder, plan: Plan, listeners: Sequence[Listener] = (), deps: Deps | None = None) -> Verdict:
    """Supervise a new run until it ends."""
    with RunLock(run):
        supervisor = Supervisor(run, plan, listeners, deps or Deps(), RunState())
        supervisor.record_run_started()
        return supervisor.run_attempts(first=None)


def take_over(run: RunFolder, plan: Plan, listeners: Sequence[Listener] = (), deps: Deps | None = None) -> Verdict:
    """Resume a run that was interrupted, has failed, or lost its supervisor."""
    with RunLock(run):
        deps = deps or Deps()
        state = load_run_state(restore_entries(replay(run), redactor_for(plan, os.environ, [run.path])))
        if is_over(state) and state.ended is not None:
            learned_nothing = state.ended.verdict == Outcome.NOT_LEARNED
            raise RunIsOver(
                f"The run {run.name} has finished ({state.ended.verdict}): there is nothing to resume.",
                next_step=("fix the problem described in its report, then " if learned_nothing else "")
                + "start a new run: holdfast run -- COMMAND",
                look_at=str(run.path),
            )
        supervisor = Supervisor(run, plan, listeners, deps, state)
        return supervisor.resume()


def run_started_event(run: RunFolder, plan: Plan, deps: Deps) -> events.RunStarted:
    """Return the first event of a run: what is known before anything starts."""
    return events.RunStarted(
        at=deps.clock(),
        schema=events.SCHEMA,
        run=run.name,
        command=plan.command,
        cwd=plan.cwd,
        holdfast=holdfast.__version__,
        platform=platform.platform(),
        python=sys.version.split()[0],
        supervisor=os.getpid(),
        memory_total=deps.machine.memory().limit,
        memory_budget=plan.budget.memory,
        observe_only=plan.observe_only,
        environment=allowed_environment(os.environ),
        tuning=plan.rules,
    )


def run_continued_event(plan: Plan, deps: Deps) -> events.RunContinued:
    """Return the first event of a resume. Its options may differ from those of the start."""
    return events.RunContinued(
        at=deps.clock(),
        supervisor=os.getpid(),
        holdfast=holdfast.__version__,
        memory_budget=plan.budget.memory,
        observe_only=plan.observe_only,
        tuning=plan.rules,
    )


class Supervisor:
    def __init__(self, run: RunFolder, plan: Plan, listeners: Sequence[Listener], deps: Deps, state: RunState) -> None:
        self._run = run
        self._plan = plan
        self._deps = deps
        self._state = state
        self._journal = JournalWriter(run.journal)
        self._notifier = Notifier(plan.on_event, run) if plan.on_event else None
        self._reader = Reader()
        self._flushing = checkpoint_backup.BackgroundFlush()
        all_listeners: list[Listener] = [*listeners, self._reader, *([self._notifier] if self._notifier else [])]
        engine = Engine(state)
        self._recorder = EventPipeline(
            self._journal, engine, all_listeners, deps.clock, redactor_for(plan, os.environ, [run.path])
        )
        self._attempts_left = plan.budget.attempts

    def record_run_started(self) -> None:
        """Write the first line of the journal."""
        self._recorder.record(run_started_event(self._run, self._plan, self._deps))

    def resume(self) -> Verdict:
        """Clean up what the previous supervisor left open, then run the next attempt."""
        last_recorded_at = self._state.last_at
        self._recorder.record(run_continued_event(self._plan, self._deps))
        self._run_safely("stopping leftover processes", self._end_leftovers, None)
        if not self._state.attempts:
            return self.run_attempts(first=None)
        attempt = self._state.attempt
        if attempt.ended is None:
            self._recorder.record(self._describe_orphan_end(last_recorded_at))
        elif attempt.ended.code == 0 and attempt.ended.stopped_by is None:
            return self.run_attempts(first=None, finished=True)  # only the verdict was missing
        self._back_up_checkpoints()
        decisions = [attempt.restart_decision for attempt in self._state.attempts]
        for decision in decisions:
            if decision is not None:
                self._apply(decision.changes)
        corrupt = self._run_safely(
            "finding the first corrupt step", lambda: corrupt_from_of_last_attempt(self._state), None
        )
        if corrupt is not None:
            self._discard_snapshots(corrupt)
        return self.run_attempts(first=self._choose_resume(corrupt))

    def _run_safely(self, doing: str, do: Callable[[], T], default: T) -> T:
        """Run `do`; if it raises, record a note and return `default`. A bug in Holdfast must not cost a training."""
        try:
            return do()
        except Exception as error:  # noqa: BLE001
            detail = f"{type(error).__name__}: {error}; the run continues with what is known"
            self._note(f"an internal error in Holdfast while {doing}", detail)
            return default

    def _choose_resume(self, before: int | None) -> events.Resume:
        return self._run_safely(
            "choosing where to resume",
            lambda: find_resume_point(self._state, self._plan, before),
            self._fallback_resume(before),
        )

    def _fallback_resume(self, before: int | None) -> events.Resume:
        """Return where the previous attempt began: that is known, unlike what it saved since."""
        known = self._state.attempt.started.resume if self._state.attempts else None
        if known is not None and known.checkpoint is not None and (before is None or known.step < before):
            with contextlib.suppress(OSError, ValueError):
                if Path(known.checkpoint).exists():
                    return known
        return events.Resume(how="start over", why="Holdfast could not determine where to resume")

    def _apply(self, changes: list[Change]) -> None:
        self._plan = self._run_safely("changing the plan", lambda: apply_changes(self._plan, changes), self._plan)

    def _end_leftovers(self) -> None:
        """Stop what the previous supervisor left running, before anything new starts. Do not touch other processes."""
        open_attempt = self._state.attempt if self._state.attempts else None
        if open_attempt is not None and open_attempt.ended is not None:
            open_attempt = None  # what it left running on purpose keeps running
        recorded = _recorded_process(open_attempt) if open_attempt is not None else None
        folders = self._unfinished_folders()
        if recorded is not None and recorded.is_in_another_namespace() and not AttemptProcesses(folders).find():
            self._note(
                "the previous training was started in another PID namespace (a container) and may still be running there",
                "it is not visible from here; if it is still running, stop it there, or both will write to the same files",
            )
        alive = end_leftovers(folders, [recorded] if recorded is not None else [], self._plan.grace_s)
        for pid in alive:
            self._note(
                f"process {pid} of the previous attempt could not be stopped", "it may still use memory and files"
            )
        unknown = find_unidentified(_collect_pids(open_attempt), recorded) if open_attempt and recorded else []
        for pid in unknown:
            if pid not in alive:
                self._note(f"process {pid} may still be running", "it could not be identified, so it was left alone")

    def _unfinished_folders(self) -> list[Path]:
        """Return the folders of attempts without a recorded end, including one started just before its supervisor was killed."""
        ended = [attempt.number for attempt in self._state.attempts if attempt.ended is not None]
        return [folder.path for folder in self._run.attempts() if folder.number > max(ended, default=0)]

    def _note(self, what: str, detail: str) -> None:
        self._recorder.record(events.SupervisorNote(at=self._deps.clock(), what=what, detail=detail))

    def run_attempts(self, first: events.Resume | None, *, finished: bool = False) -> Verdict:
        try:
            with self._deps.open_terminal() as terminal, self._keep_awake() as awake:
                if awake is not None:
                    self._recorder.record(
                        events.SupervisorNote(
                            at=self._deps.clock(),
                            what="keeping awake",
                            detail=awake.message,
                            code="kept-awake" if awake.kept else "not-kept-awake",
                        )
                    )
                self._run_safely("cleaning up old heartbeats", lambda: settle_stale(pid_space()), None)
                resume, changes = first, list[Change]()
                while not finished and self._run_attempt(resume, changes, terminal):
                    self._back_up_checkpoints()
                    decision, resume = self._decide()
                    if decision.action is Action.STOP or not self._wait_before_next(decision, terminal):
                        break
                    changes = decision.changes
                    self._apply_decision(decision)
                self._run_safely("reading checkpoints back", lambda: self._verify_checkpoints(terminal), None)
            self._finish_flushing()
            return self._conclude()
        finally:
            with contextlib.suppress(Exception):
                self._reader.close()
            self._journal.close()
            with contextlib.suppress(Exception):
                if self._run.exists_unchanged():
                    heartbeat.settle(str(self._run.heartbeat))
            if self._notifier is not None:
                self._notifier.close()

    def _keep_awake(self) -> contextlib.AbstractContextManager[AwakeResult | None]:
        return self._deps.machine.keep_awake() if self._plan.keep_awake else contextlib.nullcontext()

    def _decide(self) -> tuple[Decision, events.Resume]:
        remedy = self._run_safely("searching for a remedy", self._find_remedy, None)
        corrupt = self._run_safely(
            "finding the first corrupt step", lambda: corrupt_from_step(self._state, remedy), None
        )
        resume = self._choose_resume(corrupt)
        stop = Decision(
            action=Action.STOP, attempt=self._state.attempt.number, why="Holdfast could not decide how to continue"
        )
        decision = self._run_safely(
            "deciding how to continue",
            lambda: after_end(self._state, self._plan, attempts_left=self._attempts_left, resume=resume, remedy=remedy),
            stop,
        )
        self._recorder.record(events.DecisionMade(at=self._deps.clock(), decision=decision))
        return decision, resume

    def _find_remedy(self) -> Remedy | None:
        cause = cause_of(self._state.attempt)
        return remedy_for(self._state, self._plan, cause) if cause is not None and self._may_change() else None

    def _may_change(self) -> bool:
        return self._plan.on_finding == "act" and not self._plan.observe_only

    def _apply_decision(self, decision: Decision) -> None:
        """Update the plan for the next attempt."""
        self._apply(decision.changes)
        if decision.planned:
            self._attempts_left += 1
        if decision.discard_from is not None:
            self._discard_snapshots(decision.discard_from)

    def _discard_snapshots(self, since: int) -> None:
        """Discard corrupt snapshots, which the training would find and resume from, and the loss trace of the discarded steps."""
        if not self._run.exists_unchanged():
            return
        known = [snapshot for attempt in self._state.attempts for snapshot in attempt.snapshots.known]
        steps = {Path(snapshot.path): snapshot.step for snapshot in known}
        self._run_safely(
            "discarding corrupt snapshots", lambda: discard_corrupt(self._run.snapshots, steps, since), None
        )

    def _run_attempt(self, resume: events.Resume | None, changes: list[Change], terminal: Terminal) -> bool:
        """Run one attempt until it ends. Return False if it could not be started again."""
        if self._state.attempts and not self._run.exists_unchanged():
            self._record_stop("its run folder was removed or replaced while it was running")
            return False
        number, folder = self._make_attempt_folder()
        try:
            command = command_for(self._plan, resume)
            environ = environment(self._run, self._plan, number, resume, mtbf_s=expected_attempt_seconds(self._state))
            child = self._start_child(command, environ, folder, terminal)
        except CommandNotRunnable as error:
            if not self._state.attempts:
                raise
            self._record_stop(f"the command could not be started again: {error.what}")
            return False
        self._flushing.begin()  # only now: no thread may be running while a process is started
        try:
            self._attempts_left -= 1
            identity = read_identity(child.pid)
            self._recorder.record(
                events.AttemptStarted(
                    at=self._deps.clock(),
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
                machine=self._deps.machine,
                sensors=Sensors(self._deps.machine, lambda: [child.pid], self._run.path, self._deps.clock),
                clock_watch=ClockWatch(self._deps.machine.seconds_asleep, self._deps.clock, self._deps.monotonic),
                monotonic=self._deps.monotonic,
                deadline=self._deadline(),
            )
            ended = attempt.run()
        except Exception as error:
            child.close()
            if not self._state.attempts or self._state.attempt.number != number:
                raise  # not even its start was recorded
            ended = self._end_after_fault(child, error)
        finally:
            child.close()
        self._recorder.record(ended)
        self._recorder.sync()
        self._finish_flushing()
        return True

    def _record_stop(self, why: str) -> None:
        stop = Decision(action=Action.STOP, attempt=self._state.attempt.number, why=why)
        self._recorder.record(events.DecisionMade(at=self._deps.clock(), decision=stop))

    def _end_after_fault(self, child: ChildProcess, error: Exception) -> events.AttemptEnded:
        """Describe the end of an attempt that was stopped because it could no longer be watched."""
        self._note(
            "an internal error in Holdfast while monitoring the training process",
            f"{type(error).__name__}: {error}; the training process was stopped",
        )
        attempt, exited = self._state.attempt, child.exited
        return events.AttemptEnded(
            at=self._deps.clock(),
            attempt=attempt.number,
            code=exited.code if exited is not None else None,
            signal=exited.signal if exited is not None else None,
            first_step=attempt.first_step,
            last_step=attempt.last_step,
            seconds=max(0.0, self._deps.clock() - attempt.started.at),
        )

    def _deadline(self) -> float | None:
        """Return when the plan's time budget is used up. Time without a supervisor does not count."""
        hours, started = self._plan.budget.hours, self._state.started
        return None if hours is None or started is None else started.at + self._state.away + hours * 3600.0

    def _make_attempt_folder(self) -> tuple[int, AttemptFolder]:
        """Create the folder of the next attempt, with a number that no attempt has used, recorded or not."""
        number = self._state.attempt.number + 1 if self._state.attempts else 1
        try:
            while (folder := self._run.make_attempt(number)) is None:
                number += 1
            heartbeat.create(str(self._run.heartbeat), pid_space=pid_space())
        except OSError as error:
            raise FolderNotWritable(
                f"Cannot write to the run folder: {error.strerror}.",
                next_step=f"free some disk space, then: holdfast resume {self._run.shell_reference}",
            ) from error
        return number, folder

    def _start_child(
        self, command: list[str], environ: dict[str, str], folder: AttemptFolder, terminal: Terminal
    ) -> ChildProcess:
        """Start the command. Retry after a pause if the system temporarily cannot create a process."""
        for left in reversed(range(MAX_STARTS)):
            try:
                return self._deps.start_child(
                    command,
                    cwd=Path(self._plan.cwd),
                    env=environ,
                    stdout_log=folder.stdout_log,
                    stderr_log=folder.stderr_log,
                    terminal=terminal,
                )
            except CommandNotRunnable as error:
                is_temporary = isinstance(error.__cause__, OSError) and error.__cause__.errno in (
                    errno.EAGAIN,
                    errno.ENOMEM,
                )
                if not is_temporary or not left or isinstance(terminal.wait(START_RETRY_S), process_events.Interrupt):
                    raise
        raise AssertionError("unreachable")

    def _back_up_checkpoints(self) -> None:
        """Copy the checkpoints of the attempt before anything can overwrite them."""
        self._run_safely("backing up checkpoints", self._copy_saved, None)

    def _copy_saved(self) -> None:
        attempt = self._state.attempt
        files = saved_files(self._state, self._plan)
        finished = attempt.ended is not None and attempt.ended.code == 0
        if (
            attempt.backed_up is not None
            or not files
            or finished
            or self._plan.observe_only
            or not self._run.exists_unchanged()
        ):
            return
        kept, left_out = checkpoint_backup.back_up(
            files, self._run.attempt(attempt.number).saved, base=Path(self._plan.cwd)
        )
        self._flushing.add(kept)
        self._recorder.record(
            events.CheckpointsBackedUp(at=self._deps.clock(), attempt=attempt.number, files=kept, left_out=left_out)
        )

    def _finish_flushing(self) -> None:
        for error in self._run_safely("flushing checkpoint backups to disk", self._flushing.end, list[str]()):
            self._recorder.record(
                events.SupervisorNote(
                    at=self._deps.clock(), what="a checkpoint backup may not be on disk yet", detail=error
                )
            )

    def _verify_checkpoints(self, terminal: Terminal) -> None:
        """Check that the checkpoints load, right after the training, while a broken one can still be fixed."""
        if self._state.attempts and self._state.attempt.finished:
            for reloaded in self._reader.read_back(self._state, self._plan, self._deps.clock):
                self._recorder.record(reloaded)
            self._validate_on_cpu(terminal)

    def _validate_on_cpu(self, terminal: Terminal) -> None:
        validation = make_validation(self._state, self._plan)
        if validation is None:
            return
        now = self._deps.clock()
        self._recorder.record(
            events.SupervisorNote(at=now, what="validating best.pt on the CPU", detail=validation.why)
        )
        with validation:
            while not validation.is_finished():
                notice = terminal.wait(POLL_S)
                if isinstance(notice, (process_events.Interrupt, process_events.Terminate)):
                    self._record_stop_signal(notice)
                    return
        self._recorder.record(validation.result_event(self._deps.clock(), self._state.attempt.last_step))

    def _record_stop_signal(self, notice: process_events.ProcessEvent) -> str:
        signal = "SIGINT" if isinstance(notice, process_events.Interrupt) else "SIGTERM"
        self._recorder.record(
            events.Signalled(at=self._deps.clock(), signal=signal, action="no further attempt", ends_run=True)
        )
        return signal

    def _wait_before_next(self, decision: Decision, terminal: Terminal) -> bool:
        """Wait before the next attempt. Return False if a signal cancels it."""
        deadline = self._deps.monotonic() + decision.wait_s
        while (left := deadline - self._deps.monotonic()) > 0:
            notice = terminal.wait(left)
            if isinstance(notice, (process_events.Interrupt, process_events.Terminate)):
                signal = self._record_stop_signal(notice)
                now = self._deps.clock()
                stop = Decision(
                    action=Action.STOP,
                    attempt=decision.attempt,
                    why=f"{signal} while waiting for the next attempt",
                    cause=decision.cause,
                )
                self._recorder.record(events.DecisionMade(at=now, decision=stop))
                return False
        return True

    def _conclude(self) -> Verdict:
        result = self._run_safely(
            "determining the verdict of the run", lambda: verdict(self._state), self._fallback_verdict()
        )
        self._recorder.record(
            events.RunEnded(
                at=self._deps.clock(),
                verdict=result.outcome.value,
                reason=result.reason,
                proofs=result.proofs,
                exit_status=result.exit_status,
            )
        )
        self._recorder.sync()
        return result

    def _fallback_verdict(self) -> Verdict:
        reason = (
            "the result could not be determined because of an internal error in Holdfast: see the notes in the journal"
        )
        if self._state.attempts and self._state.attempt.finished:
            return Verdict(outcome=Outcome.UNPROVEN, reason=reason)
        return Verdict(outcome=Outcome.FAILED, reason=reason, exit_status=FAILED)

    def _describe_orphan_end(self, last_recorded_at: float) -> events.AttemptEnded:
        """Describe the end of an attempt whose supervisor was killed, from the journal (up to `last_recorded_at`) and the last heartbeat."""
        attempt = self._state.attempt
        beat = read_beats(self._run).get(0)
        last_step = max(attempt.last_step, beat.step if beat is not None else 0)
        at = max(last_recorded_at, beat.step_at if beat is not None else 0.0)
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


def _collect_pids(attempt: AttemptState) -> dict[int, float]:
    """Return every recorded pid and when it was recorded: the command itself, its interpreters, the ranks."""
    pids: list[tuple[int, float]] = [(attempt.started.pid, attempt.started.at)]
    pids += [(interpreter.pid, interpreter.at) for interpreter in attempt.interpreters]
    pids += [(attached.pid, attached.at) for attached in (attempt.attached, *attempt.others) if attached is not None]
    return dict(pids)

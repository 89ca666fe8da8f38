"""One attempt: the child process is watched until it exits, and its end is described.

The loop waits for events of the child process. In between, it reads the probe's events, the heartbeat and the sensors.
It stops an attempt only if the policy says so, and records who stopped it.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from holdfast.diagnosis.output_patterns import needles, rules_matching
from holdfast.diagnosis.planned_restart import find_restart_reason
from holdfast.probe.holdfast_probe import heartbeat
from holdfast.process import process_events
from holdfast.process.exit_evidence import collect_exit_evidence, last_lines
from holdfast.process.output_matcher import OutputMatcher
from holdfast.process.stack_dumps import StackReader
from holdfast.remedies.policy import asks_for_snapshot, ends_attempt, worth_a_restart
from holdfast.schema import events
from holdfast.schema.shell_text import shell_quote
from holdfast.storage.journal import Entry, Tail, rank_of
from holdfast.supervisor.graceful_stop import LAST_SNAPSHOT_S, RESTART_SNAPSHOT_S, GivenUp, GracefulStop, StopNow
from holdfast.supervisor.hang_watch import HangWatch, Request

if TYPE_CHECKING:
    from collections.abc import Callable

    import psutil

    from holdfast.machine import KillCounters, Machine
    from holdfast.process.child_process import ChildProcess
    from holdfast.process.sensors import ClockWatch, Sensors
    from holdfast.schema.plan import Plan
    from holdfast.storage.folder import RunFolder
    from holdfast.supervisor.event_pipeline import EventPipeline

MAX_OUTPUT_LINES = 200
TICK_S = 0.25
INTERRUPT_RESPONSE_S = 60.0
"""If the training is still running this long after an interrupt, the interrupt is not what stopped it later."""
JOURNAL_SAMPLES = 2000
"""Approximate number of memory samples in the journal for the first hours; it also sets how slowly that number grows later."""
DISK_FULL_BYTES = 1 << 20
BUSY_CORES = 0.5
"""More CPU use than this without any other activity means a long native call, not a wait."""
PROMPT_CHECK_S = 1.0
MAX_DUMPS = 8
"""Stack dumps that one attempt writes to the journal; all of them are in its folder."""


class Attempt:
    def __init__(
        self,
        number: int,
        *,
        run: RunFolder,
        plan: Plan,
        recorder: EventPipeline,
        child: ChildProcess,
        machine: Machine,
        sensors: Sensors,
        clock_watch: ClockWatch,
        monotonic: Callable[[], float],
        deadline: float | None = None,
    ) -> None:
        """`deadline` is when the plan's time budget is used up."""
        self.number = number
        self._deadline = deadline
        self._run = run
        self._folder = run.attempt(number)
        self._plan = plan
        self._recorder = recorder
        self._child = child
        self._machine = machine
        self._sensors = sensors
        self._clock_watch = clock_watch
        self._monotonic = monotonic
        self._began = monotonic()
        self._began_at = recorder.now()
        self._kills_before: KillCounters = machine.kill_counters()
        self._tails: dict[Path, Tail] = {self._folder.interpreters: Tail(self._folder.interpreters)}
        self._hang = HangWatch(plan.hang, self._began)
        self._stacks = StackReader(self._folder.stacks)
        self._output_at = self._began
        self._cpu = 0.0
        """CPU seconds that the whole process tree had used at the last sample."""
        self._busy_since = (self._began, 0.0)
        self._dumps = 0
        self._hint_given = False
        self._next_sample = self._began
        self._next_journal_sample = self._began
        self._interrupts = 0
        self._interrupted_at: float | None = None
        self._stopped_by: events.StopCause | None = None
        self._stopping_rule = ""
        self._kill_at: float | None = None
        """When to stop a training that was suspended and was woken for a Ctrl-C."""
        self._planned = ""
        self._graceful_stop = GracefulStop(run, lambda: recorder.state, self._began)
        self._notes: set[tuple[str, str]] = set()
        self._lines = OutputMatcher(needles(), rules_matching)
        child.watch(self._lines)

    def run(self) -> events.AttemptEnded:
        """Watch the child process until it exits. Return the end of the attempt, not yet recorded."""
        while True:
            notice = self._child.wait(TICK_S)
            self._tick_safely()
            if isinstance(notice, process_events.Exited):
                return self._end_safely(notice)
            if notice is not None:
                self._handle_safely(notice)

    # --- events of the child process ---------------------------------------------------------------------------------

    def _handle(self, notice: process_events.ProcessEvent) -> None:
        now = self._recorder.now()
        if isinstance(notice, process_events.Interrupt):
            self._handle_interrupt(notice)
        elif isinstance(notice, process_events.Terminate):
            self._handle_terminate()
        elif isinstance(notice, process_events.Suspend):
            self._recorder.record(events.Suspended(at=now))
        elif isinstance(notice, process_events.Continued):
            self._recorder.record(events.Continued(at=now, seconds=notice.seconds))
            self._hang.reset(self._monotonic())
        elif isinstance(notice, process_events.Forwarded):
            self._recorder.record(
                events.Signalled(at=now, signal=notice.signal, action="forwarded to the training process")
            )
        elif isinstance(notice, process_events.Hangup):
            self._recorder.record(
                events.Signalled(
                    at=now, signal="SIGHUP", action="the terminal is gone; the run continues and is recorded"
                )
            )

    def _handle_interrupt(self, notice: process_events.Interrupt) -> None:
        now = self._monotonic()
        if self._interrupted_at is not None and now - self._interrupted_at > INTERRUPT_RESPONSE_S:
            self._interrupts = 0
        self._interrupts += 1
        self._interrupted_at = now
        first = self._interrupts == 1
        action = (
            "asked the training process to stop; press Ctrl-C again to terminate it"
            if first
            else "stopping the training process"
        )
        self._recorder.record(events.Signalled(at=self._recorder.now(), signal="SIGINT", action=action))
        if not first:
            self._stop("user")
            return
        if not notice.delivered:
            self._child.ask_to_stop()
        if self._child.wake():
            self._kill_at = now + self._plan.grace_s
            detail = f"it was continued (SIGCONT) to receive the interrupt, and will be terminated if it does not exit within {self._plan.grace_s:g} s"
            self._note("the training process was suspended (SIGSTOP)", detail)

    def _stop_if_woken(self, now: float) -> None:
        if self._kill_at is not None and now >= self._kill_at and self._stopped_by is None:
            self._stop("user")

    def _handle_terminate(self) -> None:
        """Stop the training. If it takes snapshots, wait for a last one, so that no work is lost."""
        waits = self._graceful_stop.is_only_planned and self._graceful_stop.request_stop(
            "terminate", self._monotonic(), LAST_SNAPSHOT_S
        )
        action = (
            "requested a final snapshot; the training process will then be stopped"
            if waits
            else "stopping the training process"
        )
        self._recorder.record(events.Signalled(at=self._recorder.now(), signal="SIGTERM", action=action))
        if not waits:
            self._stop("terminate")

    def _check_pending_stop(self, now: float) -> None:
        if self._stopped_by is not None:
            return
        result = self._graceful_stop.poll(now)
        if isinstance(result, StopNow):
            self._planned = result.planned
            self._stop(result.by, result.rule)
        elif isinstance(result, GivenUp):
            self._note(
                "no planned restart", f"no snapshot was taken within {RESTART_SNAPSHOT_S:.0f} s ({result.planned})"
            )

    def _check_planned_restart(self, now: float) -> None:
        """Restart the training before memory is used up."""
        if self._stopped_by is None and self._graceful_stop.may_restart(now):
            reason = find_restart_reason(self._recorder.state, self._plan)
            if reason is not None:
                self._restart("planned restart", reason)

    def _restart(self, by: events.StopCause, reason: str, rule: str = "") -> None:
        if self._graceful_stop.request_stop(by, self._monotonic(), RESTART_SNAPSHOT_S, reason, rule):
            self._note("restarting in a new process", reason)

    def _check_budget(self) -> None:
        is_used_up = self._deadline is not None and self._recorder.now() >= self._deadline
        if is_used_up and self._stopped_by is None and not self._graceful_stop.is_stopping_for("budget"):
            self._note(
                "the time budget of the plan is used up",
                "training will be stopped; if snapshots are enabled, one is requested first",
            )
            if not self._graceful_stop.request_stop("budget", self._monotonic(), RESTART_SNAPSHOT_S):
                self._stop("budget")

    def _stop(self, by: events.StopCause, rule: str = "") -> None:
        if self._stopped_by is None:
            self._stopped_by, self._stopping_rule = by, rule
        self._child.terminate(self._plan.grace_s)

    # --- observation -------------------------------------------------------------------------------------------------

    def _tick_safely(self) -> None:
        """Run one tick; if it raises, record a note. A bug in Holdfast must not cost a training."""
        try:
            self._tick()
        except Exception as error:  # noqa: BLE001
            self._note("an internal error in Holdfast", f"{type(error).__name__}: {error}")

    def _handle_safely(self, notice: process_events.ProcessEvent) -> None:
        try:
            self._handle(notice)
        except Exception as error:  # noqa: BLE001
            self._note("an internal error in Holdfast", f"{type(error).__name__}: {error}")
            if isinstance(notice, (process_events.Interrupt, process_events.Terminate)):
                self._stop("user" if isinstance(notice, process_events.Interrupt) else "terminate")

    def _end_safely(self, exited: process_events.Exited) -> events.AttemptEnded:
        try:
            return self._describe_end(exited)
        except Exception as error:  # noqa: BLE001
            self._note("an internal error in Holdfast", f"{type(error).__name__}: {error}")
            attempt = self._recorder.state.attempt
            return events.AttemptEnded(
                at=self._recorder.now(),
                attempt=self.number,
                code=exited.code,
                signal=exited.signal,
                first_step=attempt.first_step,
                last_step=attempt.last_step,
                seconds=self._monotonic() - self._began,
                stopped_by=self._stopped_by,
                rule=self._stopping_rule,
                planned=self._planned,
            )

    def _note(self, what: str, detail: str) -> None:
        """Record a note about the supervisor's own work, once per attempt."""
        if (what, detail) not in self._notes:
            self._notes.add((what, detail))
            self._recorder.record(events.SupervisorNote(at=self._recorder.now(), what=what, detail=detail))

    def _tick(self) -> None:
        self._read_probe()
        self._read_output()
        now = self._monotonic()
        if now >= self._next_sample:
            self._next_sample = now + self._plan.sample_every_s
            self._take_sample(now)
            self._check_planned_restart(now)
            self._check_budget()
        self._watch_for_hang(now)
        self._check_pending_stop(now)
        self._stop_if_woken(now)
        self._recorder.flush()
        self._hint_resume_options()
        for finding in self._recorder.pop_new_findings():
            if ends_attempt(finding, self._plan):
                self._stop("rule", finding.rule)
            elif self._graceful_stop.is_idle and worth_a_restart(finding, self._recorder.state, self._plan):
                self._restart("rule", finding.message, finding.rule)
            elif asks_for_snapshot(finding, self._plan) and self._graceful_stop.request_snapshot():
                self._note("a snapshot was requested", finding.rule)

    def _hint_resume_options(self) -> None:
        """Tell the user early if the training saves checkpoints that Holdfast would not know how to resume from."""
        attempt = self._recorder.state.attempt
        if (
            self._hint_given
            or not attempt.saves.are_saved_during_training(attempt.last_step)
            or attempt.takes_snapshots
            or self._plan.checkpoint is not None
            or self._plan.observe_only
            or self._plan.budget.attempts == 1
            or attempt.framework is not None
        ):
            return
        self._hint_given = True
        path = next(reversed(attempt.saves.by_path))
        pattern = str(Path(path).with_name("*" + Path(path).suffix))
        self._note(
            f"your script saves {path}, but Holdfast does not know how to resume from it after a crash",
            f"""to resume from this file, start with --checkpoint {shell_quote(pattern)} --resume-with "--resume {{checkpoint}}" """
            "(replace --resume with your command's own option); or resume at the exact batch, without a checkpoint, with "
            "holdfast.guard (docs/guard.md)",
        )

    def _read_probe(self) -> None:
        for path in self._folder.rank_files():
            if path not in self._tails:
                self._tails[path] = Tail(path)
        for path, tail in self._tails.items():
            rank, primary = (None, True) if path == self._folder.interpreters else rank_of(path)
            self._recorder.take_probe_entries(Entry(event, self.number, rank, primary) for event in tail.read())

    def _read_output(self) -> None:
        """Record lines of output that a rule recognizes."""
        for match in self._lines.take():
            self._recorder.record(
                events.OutputMatched(
                    at=self._recorder.now(),
                    rule=match.topic,
                    stream=match.stream,
                    text=match.text,
                    count=match.count,
                )
            )
        if self._lines.fault is not None:
            self._note("the output is no longer searched for known messages", repr(self._lines.fault))

    def _take_sample(self, now: float) -> None:
        if not (self._run.exists_unchanged() and self._folder.path.is_dir()):
            self._note(
                "the run folder was removed or replaced",
                f"nothing more is recorded in {self._run.path}, and the run cannot be resumed",
            )
            return
        sample = self._sensors.sample()
        if sample.disk_free < DISK_FULL_BYTES:
            self._note(
                "the disk is full",
                f"cannot write to {self._run.path}; training continues, and the last completed step is still recorded, but events may be missing from the journal",
            )
        self._cpu = sample.cpu or 0.0
        sleep_event = self._clock_watch.check()
        if sleep_event is not None:
            self._recorder.record(sleep_event)
            self._hang.reset(now)
        lowest = self._recorder.state.attempt.memory.least_available
        is_lower = lowest is not None and sample.available < 0.95 * lowest
        if now >= self._next_journal_sample or is_lower:
            self._next_journal_sample = now + max(self._plan.sample_every_s, (now - self._began) / JOURNAL_SAMPLES)
            self._recorder.record(sample)

    def _watch_for_hang(self, now: float) -> None:
        at_prompt = self._hang.quiet_for(now) > PROMPT_CHECK_S and self._child.at_prompt()
        if at_prompt or self._child.blocked_on_terminal():
            self._hang.reset(now)
            return
        beats = heartbeat.read(str(self._run.heartbeat)).values()
        activity = sum(beat.step + beat.backwards + beat.fetches + beat.saves for beat in beats)
        written = sum(tail.position for tail in self._tails.values())
        output_at = now - self._child.quiet_for()
        if output_at > self._output_at + 0.5:
            self._output_at = output_at
        stepped = any(beat.step_at for beat in beats)
        if self._hang.update(now, self._output_at, activity, written, stepped=stepped) is Request.DUMP:
            quiet = events.NoProgress(
                at=self._recorder.now(), seconds=self._hang.quiet_for(now), bound=self._hang.bound
            )
            if self._recorder.state.attempt.no_progress is None:
                self._recorder.record(quiet)
            if not self._stacks.request(self._processes_with_stacks(), now):
                self._hang.dump_failed(now)
        self._read_stacks(now)

    def _read_stacks(self, now: float) -> None:
        answer = self._stacks.collect(now)
        if answer == "":
            self._hang.dump_failed(now)
        elif answer is not None:
            since, cpu = self._busy_since
            busy = now > since and (self._cpu - cpu) / (now - since) > BUSY_CORES
            self._busy_since = (now, self._cpu)
            same = self._hang.add_dump(answer, now, busy=busy)
            stacks = events.Stacks(at=self._recorder.now(), pid=self._stacks.pids[0], text=answer, same=same)
            if self._dumps < MAX_DUMPS or same:
                self._dumps += 1
                self._recorder.record(stacks)

    def _processes_with_stacks(self) -> list[tuple[psutil.Process, int]]:
        """Return the processes to signal for a stack dump. Their pids come from files that the training writes, so only
        processes known to belong to the attempt are included.
        """
        attempt = self._recorder.state.attempt
        alive = {process.pid: process for process in self._child.list_alive()}
        attached_processes = [
            attached
            for attached in (attempt.attached, *attempt.others)
            if attached is not None and attached.pid in alive
        ]
        return [
            (alive[attached.pid], attached.stack_signal)
            for attached in attached_processes
            if attached.stack_signal is not None
        ]

    # --- the end -----------------------------------------------------------------------------------------------------

    def _describe_end(self, exited: process_events.Exited) -> events.AttemptEnded:
        seconds = self._monotonic() - self._began
        if exited.code != 0:
            # Surviving workers would keep memory and files that the next attempt needs.
            self._child.terminate(self._plan.grace_s)
        self._child.close()
        while not all(tail.at_end for tail in self._tails.values()):
            self._read_probe()
        self._read_probe()
        self._read_output()
        attempt = self._recorder.state.attempt
        beat = heartbeat.read(str(self._run.heartbeat)).get(0)
        last_step = max(attempt.last_step, beat.step if beat is not None else 0)
        if self._stopped_by is None and self._interrupted_at is not None:
            responded = self._monotonic() - self._interrupted_at < INTERRUPT_RESPONSE_S
            self._stopped_by = "user" if responded or exited.signal == "SIGINT" else None
        last = self._child.last_lines(MAX_OUTPUT_LINES)
        words = last_lines(last.stderr or last.stdout)
        evidence = []
        if exited.code != 0 and self._stopped_by is None:
            of_machine = self._machine.kill_evidence(self._kills_before, self._sensors.pids, self._began_at)
            evidence = collect_exit_evidence(exited.code, exited.signal, words, of_machine)
        return events.AttemptEnded(
            at=self._recorder.now(),
            attempt=self.number,
            code=exited.code,
            signal=exited.signal,
            first_step=attempt.first_step
            if attempt.first_step is not None
            else _infer_first_step(attempt.last_step, last_step),
            last_step=last_step,
            seconds=seconds,
            stopped_by=self._stopped_by,
            rule=self._stopping_rule,
            planned=self._planned,
            evidence=evidence,
            last_lines=words if exited.code != 0 else words[-5:],
        )


def _infer_first_step(before: int, last: int) -> int | None:
    """Return the first step of an attempt whose steps only the heartbeat recorded."""
    return before + 1 if last > before else None

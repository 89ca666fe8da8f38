"""One life of the child process: started, watched until it ends, and described.

The loop waits for the child's notices and, in between, looks at what the probe wrote, at the heartbeat and at the sensors.
It ends an attempt only where the policy says so, and writes down who did.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from holdfast.diagnosis.output_patterns import needles, rules_matching
from holdfast.diagnosis.planned_restart import find_restart_reason
from holdfast.probe.holdfast_probe import heartbeat
from holdfast.process import process_events
from holdfast.process.exit_evidence import evidence_of, last_words
from holdfast.process.output_matcher import OutputMatcher
from holdfast.process.stack_dumps import StackReader
from holdfast.remedies.policy import asks_for_snapshot, ends_attempt, worth_a_restart
from holdfast.schema import events
from holdfast.schema.shell_text import shell_quoted
from holdfast.storage.journal import Entry, Tail, rank_of
from holdfast.supervisor.graceful_stop import LAST_SNAPSHOT_S, RESTART_SNAPSHOT_S, Ended, GivenUp, GracefulStop
from holdfast.supervisor.hang_watch import Ask, HangWatch

if TYPE_CHECKING:
    from collections.abc import Callable

    import psutil

    from holdfast.machine import KillCounters, Machine
    from holdfast.process.child_process import ChildProcess
    from holdfast.process.sensors import ClockWatch, Sensors
    from holdfast.schema.plan import Plan
    from holdfast.storage.folder import RunFolder
    from holdfast.supervisor.event_pipeline import EventPipeline

LINES_LOOKED_AT = 200
TICK_S = 0.25
HEARD_S = 60.0
"""An interrupt that the training survived this long was answered: it is not what ended it later."""
JOURNAL_SAMPLES = 2000
"""Roughly how many memory samples the journal keeps of the first hours, and how slowly that grows after."""
DISK_FULL_BYTES = 1 << 20
BUSY_CORES = 0.5
"""More processor time than this, while nothing else shows, is a long native call and not a wait."""
PROMPT_LOOK_S = 1.0
PLANNED = "planned restart"
MAX_DUMPS = 8
"""Stacks that go into the journal of one attempt; all of them are in its folder."""


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
        until: float | None = None,
    ) -> None:
        """`until` is when the time that the plan gives the run is used up."""
        self.number = number
        self._until = until
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
        """Processor seconds that the whole tree had used at the last sample."""
        self._busy_since = (self._began, 0.0)
        self._dumps = 0
        self._hinted = False
        self._next_sample = self._began
        self._next_journal_sample = self._began
        self._interrupts = 0
        self._interrupted_at: float | None = None
        self._stopped_by: str | None = None
        self._end_at: float | None = None
        """When a training that was stopped, and woken for a Ctrl-C, is ended."""
        self._planned = ""
        self._leaving = GracefulStop(run, lambda: recorder.state, self._began)
        self._remarks: set[tuple[str, str]] = set()
        self._lines = OutputMatcher(needles(), rules_matching)
        child.watch(self._lines)

    def live(self) -> events.AttemptEnded:
        """Watch until it has ended; the end is described but not yet recorded."""
        while True:
            notice = self._child.wait(TICK_S)
            self._tick_unharmed()
            if isinstance(notice, process_events.Exited):
                return self._end_unharmed(notice)
            if notice is not None:
                self._answer_unharmed(notice)

    # --- what the child tells ----------------------------------------------------------------------------------------

    def _answer(self, notice: process_events.ProcessEvent) -> None:
        now = self._recorder.now()
        if isinstance(notice, process_events.Interrupt):
            self._interrupted(notice)
        elif isinstance(notice, process_events.Terminate):
            self._terminated()
        elif isinstance(notice, process_events.Suspend):
            self._recorder.record(events.Suspended(at=now))
        elif isinstance(notice, process_events.Continued):
            self._recorder.record(events.Continued(at=now, seconds=notice.seconds))
            self._hang.excuse(self._monotonic())
        elif isinstance(notice, process_events.Forwarded):
            self._recorder.record(events.Signalled(at=now, signal=notice.signal, action="passed on to the training"))
        elif isinstance(notice, process_events.Hangup):
            self._recorder.record(
                events.Signalled(
                    at=now, signal="SIGHUP", action="the terminal is gone; the run goes on and is recorded"
                )
            )

    def _interrupted(self, notice: process_events.Interrupt) -> None:
        now = self._monotonic()
        if self._interrupted_at is not None and now - self._interrupted_at > HEARD_S:
            self._interrupts = 0
        self._interrupts += 1
        self._interrupted_at = now
        first = self._interrupts == 1
        action = "asked the training to stop; once more ends it" if first else "ending the training"
        self._recorder.record(events.Signalled(at=self._recorder.now(), signal="SIGINT", action=action))
        if not first:
            self._stop("user")
            return
        if not notice.delivered:
            self._child.ask_to_stop()
        if self._child.wake():
            self._end_at = now + self._plan.grace_s
            detail = f"it was woken to hear of it, and is ended in {self._plan.grace_s:g} s if it goes on"
            self._remark("the training was stopped (SIGSTOP)", detail)

    def _end_what_was_woken(self, now: float) -> None:
        if self._end_at is not None and now >= self._end_at and self._stopped_by is None:
            self._stop("user")

    def _terminated(self) -> None:
        """Where snapshots are taken, one more is waited for: what was done since the last would have to be done again."""
        leaves = self._leaving.only_planned and self._leaving.leave("terminate", self._monotonic(), LAST_SNAPSHOT_S)
        action = "asked for a last snapshot, then ending the training" if leaves else "ending the training"
        self._recorder.record(events.Signalled(at=self._recorder.now(), signal="SIGTERM", action=action))
        if not leaves:
            self._stop("terminate")

    def _leave_when_it_is_time(self, now: float) -> None:
        if self._stopped_by is not None:
            return
        became = self._leaving.look(now)
        if isinstance(became, Ended):
            self._planned = became.planned
            self._stop(became.by)
        elif isinstance(became, GivenUp):
            self._remark("no fresh process", f"no snapshot came within {RESTART_SNAPSHOT_S:.0f} s ({became.planned})")

    def _plan_a_restart(self, now: float) -> None:
        """Before memory is used up, at a moment of our choosing."""
        if self._stopped_by is None and self._leaving.may_restart(now):
            reason = find_restart_reason(self._recorder.state, self._plan)
            if reason is not None:
                self._restart(PLANNED, reason)

    def _restart(self, by: str, reason: str) -> None:
        if self._leaving.leave(by, self._monotonic(), RESTART_SNAPSHOT_S, reason):
            self._remark("a fresh process is next", reason)

    def _end_with_the_budget(self) -> None:
        over = self._until is not None and self._recorder.now() >= self._until
        if over and self._stopped_by is None and not self._leaving.is_for("budget"):
            self._remark("the time that the plan gives it is used up", "it ends with a snapshot where it takes them")
            if not self._leaving.leave("budget", self._monotonic(), RESTART_SNAPSHOT_S):
                self._stop("budget")

    def _stop(self, by: str) -> None:
        self._stopped_by = self._stopped_by or by
        self._child.end(self._plan.grace_s)

    # --- what can be seen --------------------------------------------------------------------------------------------

    def _tick_unharmed(self) -> None:
        """A fault of Holdfast's own is noted and must not cost anybody a training."""
        try:
            self._tick()
        except Exception as error:  # noqa: BLE001
            self._remark("a fault of Holdfast", f"{type(error).__name__}: {error}")

    def _answer_unharmed(self, notice: process_events.ProcessEvent) -> None:
        try:
            self._answer(notice)
        except Exception as error:  # noqa: BLE001
            self._remark("a fault of Holdfast", f"{type(error).__name__}: {error}")
            if isinstance(notice, (process_events.Interrupt, process_events.Terminate)):
                self._stop("user" if isinstance(notice, process_events.Interrupt) else "terminate")

    def _end_unharmed(self, exited: process_events.Exited) -> events.AttemptEnded:
        try:
            return self._end(exited)
        except Exception as error:  # noqa: BLE001
            self._remark("a fault of Holdfast", f"{type(error).__name__}: {error}")
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
                planned=self._planned,
            )

    def _remark(self, what: str, detail: str) -> None:
        """Say something about our own work, once an attempt."""
        if (what, detail) not in self._remarks:
            self._remarks.add((what, detail))
            self._recorder.record(events.SupervisorNote(at=self._recorder.now(), what=what, detail=detail))

    def _tick(self) -> None:
        self._read_probe()
        self._hear()
        now = self._monotonic()
        if now >= self._next_sample:
            self._next_sample = now + self._plan.sample_every_s
            self._take_sample(now)
            self._plan_a_restart(now)
            self._end_with_the_budget()
        self._watch_for_hang(now)
        self._leave_when_it_is_time(now)
        self._end_what_was_woken(now)
        self._recorder.flush()
        self._hint_at_going_on()
        for finding in self._recorder.fresh_findings():
            if ends_attempt(finding, self._plan):
                self._stop(finding.rule)
            elif self._leaving.idle and worth_a_restart(finding, self._recorder.state, self._plan):
                self._restart(finding.rule, finding.message)
            elif asks_for_snapshot(finding, self._plan) and self._leaving.ask_for_snapshot():
                self._remark("a snapshot was asked for", finding.rule)

    def _hint_at_going_on(self) -> None:
        """It saves as it goes, and we would not know how to go on from that: better said now than after the kill."""
        attempt = self._recorder.state.attempt
        if (
            self._hinted
            or not attempt.saves.are_saved_during_training(attempt.last_step)
            or self._leaving.takes_snapshots()
            or self._plan.checkpoint is not None
            or self._plan.observe_only
            or self._plan.budget.attempts == 1
            or attempt.adapter is not None
        ):
            return
        self._hinted = True
        path = next(reversed(attempt.saves.by_path))
        pattern = str(Path(path).with_name("*" + Path(path).suffix))
        self._remark(
            f"it saves {path}, but if it dies it starts over",
            f"""to go on from there, start with --checkpoint {shell_quoted(pattern)} --resume-with "--resume {{checkpoint}}" """
            "(the arguments that your command takes for it); or have it go on at the very batch, without a checkpoint: two lines of "
            "holdfast.guard (docs/guard.md)",
        )

    def _read_probe(self) -> None:
        for path in self._folder.rank_files():
            if path not in self._tails:
                self._tails[path] = Tail(path)
        for path, tail in self._tails.items():
            rank, primary = (None, True) if path == self._folder.interpreters else rank_of(path)
            self._recorder.saw(Entry(event, self.number, rank, primary) for event in tail.read())

    def _hear(self) -> None:
        """Lines of output that a rule knows."""
        for heard in self._lines.take():
            self._recorder.record(
                events.OutputMatched(
                    at=self._recorder.now(),
                    rule=heard.topic,
                    stream=heard.stream,
                    text=heard.text,
                    count=heard.count,
                )
            )
        if self._lines.fault is not None:
            self._remark("the output is no longer looked through", repr(self._lines.fault))

    def _take_sample(self, now: float) -> None:
        if not (self._run.is_there() and self._folder.path.is_dir()):
            self._remark(
                "the run folder was removed or replaced",
                f"{self._run.path} is gone while the run lives: nothing more of it is recorded, and it cannot be resumed",
            )
            return
        sample = self._sensors.sample()
        if sample.disk_free < DISK_FULL_BYTES:
            self._remark(
                "the disk is full",
                f"{self._run.path} takes no more; the training goes on, the last step stays exact, the record has a gap",
            )
        self._cpu = sample.cpu or 0.0
        slept = self._clock_watch.look()
        if slept is not None:
            self._recorder.record(slept)
            self._hang.excuse(now)
        known = self._recorder.state.attempt.memory.least_available
        scarcer = known is not None and sample.available < 0.95 * known
        if now >= self._next_journal_sample or scarcer:
            self._next_journal_sample = now + max(self._plan.sample_every_s, (now - self._began) / JOURNAL_SAMPLES)
            self._recorder.record(sample)

    def _watch_for_hang(self, now: float) -> None:
        asked = self._hang.quiet_for(now) > PROMPT_LOOK_S and self._child.at_prompt()
        if asked or self._child.blocked_on_terminal():
            self._hang.excuse(now)
            return
        beats = heartbeat.read(str(self._run.heartbeat)).values()
        signs = sum(beat.step + beat.backwards + beat.fetches + beat.saves for beat in beats)
        written = sum(tail.position for tail in self._tails.values())
        output_at = now - self._child.quiet_for()
        if output_at > self._output_at + 0.5:
            self._output_at = output_at
        stepped = any(beat.step_at for beat in beats)
        if self._hang.look(now, self._output_at, signs, written, stepped=stepped) is Ask.DUMP:
            quiet = events.NoProgress(
                at=self._recorder.now(), seconds=self._hang.quiet_for(now), bound=self._hang.bound
            )
            if self._recorder.state.attempt.no_progress is None:
                self._recorder.record(quiet)
            if not self._stacks.ask(self._processes_with_stacks(), now):
                self._hang.unanswered(now)
        self._take_stacks(now)

    def _take_stacks(self, now: float) -> None:
        answer = self._stacks.answer(now)
        if answer == "":
            self._hang.unanswered(now)
        elif answer is not None:
            since, cpu = self._busy_since
            busy = now > since and (self._cpu - cpu) / (now - since) > BUSY_CORES
            self._busy_since = (now, self._cpu)
            same = self._hang.dumped(answer, now, busy=busy)
            stacks = events.Stacks(at=self._recorder.now(), pid=self._stacks.pids[0], text=answer, same=same)
            if self._dumps < MAX_DUMPS or same:
                self._dumps += 1
                self._recorder.record(stacks)

    def _processes_with_stacks(self) -> list[tuple[psutil.Process, int]]:
        """The pids come from files that the training writes: only a process that is known to be the attempt's own is asked."""
        attempt = self._recorder.state.attempt
        alive = {process.pid: process for process in self._child.living()}
        hellos = [
            attached
            for attached in (attempt.attached, *attempt.others)
            if attached is not None and attached.pid in alive
        ]
        return [
            (alive[attached.pid], attached.stack_signal) for attached in hellos if attached.stack_signal is not None
        ]

    # --- the end -----------------------------------------------------------------------------------------------------

    def _end(self, exited: process_events.Exited) -> events.AttemptEnded:
        seconds = self._monotonic() - self._began
        if exited.code != 0:
            # Workers that outlived it would hold memory and files of the next attempt.
            self._child.end(self._plan.grace_s)
        self._child.close()
        while not all(tail.at_end for tail in self._tails.values()):
            self._read_probe()
        self._read_probe()
        self._hear()
        attempt = self._recorder.state.attempt
        beat = heartbeat.read(str(self._run.heartbeat)).get(0)
        last_step = max(attempt.last_step, beat.step if beat is not None else 0)
        if self._stopped_by is None and self._interrupted_at is not None:
            heard = self._monotonic() - self._interrupted_at < HEARD_S
            self._stopped_by = "user" if heard or exited.signal == "SIGINT" else None
        last = self._child.last_words(LINES_LOOKED_AT)
        words = last_words(last.stderr or last.stdout)
        evidence = []
        if exited.code != 0 and self._stopped_by is None:
            of_machine = self._machine.kill_evidence(self._kills_before, self._sensors.pids, self._began_at)
            evidence = evidence_of(exited.code, exited.signal, words, of_machine)
        return events.AttemptEnded(
            at=self._recorder.now(),
            attempt=self.number,
            code=exited.code,
            signal=exited.signal,
            first_step=attempt.first_step if attempt.first_step is not None else _first(attempt.last_step, last_step),
            last_step=last_step,
            seconds=seconds,
            stopped_by=self._stopped_by,
            planned=self._planned,
            evidence=evidence,
            last_words=words if exited.code != 0 else words[-5:],
        )


def _first(before: int, last: int) -> int | None:
    """The first step where only the heartbeat knows of any."""
    return before + 1 if last > before else None

"""The supervisor from the first attempt to the verdict, without processes: see fakes.py."""

from __future__ import annotations

import pytest
from fakes import FakeRun, no_memory_to_fork

from holdfast.process.process_events import Exited, Hangup, Interrupt, Terminate
from holdfast.schema import events
from holdfast.schema.errors import RunIsOver
from holdfast.schema.plan import Budget
from holdfast.schema.verdicts import Outcome
from holdfast.testing.histories import losses, trains

FALLING = [1.0 / n for n in range(1, 61)]
LEARNS = [trains(), losses(*FALLING), Exited(0)]
CRASHES = [trains(), losses(*FALLING[:20]), Exited(1)]
KILLED = [trains(), losses(*FALLING[:20]), Exited(None, "SIGKILL")]


def test_training_that_finishes(tmp_path):
    run = FakeRun(tmp_path)
    verdict = run.supervise(LEARNS)
    assert verdict.outcome is Outcome.LEARNED
    assert verdict.exit_status == 0
    assert [(end.code, end.first_step, end.last_step) for end in run.ends] == [(0, 1, 60)]
    assert [decision.action.value for decision in run.decisions] == ["stop"]


def test_training_that_is_killed_is_started_again(tmp_path):
    """Killed from outside, it learns in its second attempt."""
    run = FakeRun(tmp_path)
    verdict = run.supervise(KILLED, LEARNS)
    assert verdict.outcome is Outcome.LEARNED
    assert [end.signal for end in run.ends] == ["SIGKILL", None]
    assert [decision.action.value for decision in run.decisions] == ["restart", "stop"]
    assert [child.env["HOLDFAST_ATTEMPT"] for child in run.children] == ["1", "2"]


def test_attempts_are_used_up(tmp_path):
    run = FakeRun(tmp_path, budget=Budget(attempts=2))
    verdict = run.supervise(KILLED, KILLED)
    assert verdict.outcome is Outcome.FAILED
    assert verdict.exit_status == 4
    assert [decision.action.value for decision in run.decisions] == ["restart", "stop"]
    assert run.decisions[-1].stop_reason == "no-attempt-left"


def test_exception_before_the_first_step_is_not_tried_again(tmp_path):
    run = FakeRun(tmp_path)

    def fail(child):
        child.stderr = ["Traceback (most recent call last):", '  File "train.py", line 1', "KeyError: 'lr'"]

    verdict = run.supervise([trains(), fail, Exited(1)])
    assert verdict.outcome is Outcome.FAILED
    assert [decision.stop_reason for decision in run.decisions] == ["mistake"]


def test_fatal_finding_stops_the_attempt(tmp_path):
    """The rule reports, the policy stops the child, and the journal says which rule it was."""
    run = FakeRun(tmp_path, budget=Budget(attempts=1))
    verdict = run.supervise([trains(), losses(*[0.0] * 60)])
    assert verdict.outcome is Outcome.NOT_LEARNED
    assert verdict.exit_status == 3
    assert run.children[0].asked[:1] == ["terminate"]
    assert [(end.stopped_by, end.rule) for end in run.ends] == [("rule", "loss-all-zero")]


@pytest.mark.parametrize("plan", [{"observe_only": True}, {"on_finding": "warn"}])
def test_fatal_finding_only_warns_if_the_user_wants(tmp_path, plan):
    run = FakeRun(tmp_path, **plan)
    verdict = run.supervise([trains(), losses(*[0.0] * 60), Exited(0)])
    assert verdict.outcome is Outcome.NOT_LEARNED
    assert [(end.code, end.stopped_by) for end in run.ends] == [(0, None)]


def test_ctrl_c_asks_once_and_the_second_terminates(tmp_path):
    run = FakeRun(tmp_path)

    def ignore(child):
        child.ignores_interrupts = True

    verdict = run.supervise([trains(), ignore, Interrupt(delivered=False), Interrupt(delivered=False)])
    assert verdict.outcome is Outcome.INTERRUPTED
    assert verdict.exit_status == 130
    assert run.children[0].asked[:2] == ["interrupt", "terminate"]
    assert run.ends[0].stopped_by == "user"


def test_interrupt_that_the_terminal_delivered_is_not_sent_again(tmp_path):
    """A second SIGINT would break the training's own clean shutdown."""
    run = FakeRun(tmp_path)
    verdict = run.supervise([trains(), Interrupt(delivered=True), Exited(None, "SIGINT")])
    assert "interrupt" not in run.children[0].asked
    assert verdict.exit_status == 130


def test_sigterm_ends_the_run_and_it_can_be_resumed(tmp_path):
    run = FakeRun(tmp_path)
    verdict = run.supervise([trains(), losses(*FALLING[:20]), Terminate()])
    assert verdict.exit_status == 143
    assert run.ends[0].stopped_by == "terminate"
    verdict = run.take_over(LEARNS)
    assert verdict.outcome is Outcome.LEARNED
    assert [end.attempt for end in run.ends] == [1, 2]


def test_closed_terminal_does_not_end_the_run(tmp_path):
    run = FakeRun(tmp_path)
    verdict = run.supervise([trains(), Hangup(), losses(*FALLING), Exited(0)])
    assert verdict.outcome is Outcome.LEARNED
    assert [event.signal for event in run.events(events.Signalled)] == ["SIGHUP"]


def test_ctrl_c_between_two_attempts(tmp_path):
    run = FakeRun(tmp_path, backoff_s=30.0)
    run.terminal.requests = [Interrupt(delivered=False)]
    verdict = run.supervise(KILLED)
    assert verdict.outcome is Outcome.INTERRUPTED
    assert [decision.action.value for decision in run.decisions] == ["restart", "stop"]
    assert len(run.children) == 1


def test_pauses_before_attempts_grow(tmp_path):
    """From the second attempt on, the pause doubles while nothing comes further."""
    run = FakeRun(tmp_path, backoff_s=2.0, budget=Budget(attempts=4))
    dies = [trains(), losses(*FALLING[:3]), Exited(None, "SIGKILL")]
    run.supervise(dies, dies, dies, dies)
    waits = [decision.wait_s for decision in run.decisions if decision.action.value == "restart"]
    assert waits[0] == 2.0
    assert waits == sorted(waits)
    assert waits[-1] > 2.0


def test_hours_of_the_plan(tmp_path):
    run = FakeRun(tmp_path, budget=Budget(hours=1.0))
    verdict = run.supervise([trains(), losses(*FALLING[:20]), 4000.0, 1.0])
    assert verdict.exit_status == 143
    assert run.ends[0].stopped_by == "budget"


def test_system_that_cannot_fork_for_a_while(tmp_path):
    """Starting is tried again after a pause, and no attempt is spent on it."""
    run = FakeRun(tmp_path, budget=Budget(attempts=1))
    verdict = run.supervise(no_memory_to_fork(), no_memory_to_fork(), LEARNS)
    assert verdict.outcome is Outcome.LEARNED
    assert [end.attempt for end in run.ends] == [1]


def test_finished_run_is_not_resumed(tmp_path):
    run = FakeRun(tmp_path)
    run.supervise(LEARNS)
    with pytest.raises(RunIsOver):
        run.take_over()


def test_supervisor_that_was_killed(tmp_path):
    """The next one finds an attempt without an end, records one, and starts the next attempt."""
    run = FakeRun(tmp_path)

    class Killed(BaseException):
        pass

    def kill(_child):
        raise Killed

    with pytest.raises(Killed):
        run.supervise([trains(), losses(*FALLING[:20]), 1.0, kill])
    verdict = run.take_over(LEARNS)
    assert verdict.outcome is Outcome.LEARNED
    assert [(end.stopped_by, end.last_step) for end in run.ends] == [("supervisor gone", 20), (None, 60)]


def test_run_folder_that_disappears_ends_the_run(tmp_path):
    run = FakeRun(tmp_path)

    def remove(_child):
        run.folder.path.rename(tmp_path / "elsewhere")

    verdict = run.supervise([trains(), losses(*FALLING[:20]), remove, Exited(None, "SIGKILL")])
    assert verdict.outcome is Outcome.FAILED
    assert len(run.children) == 1


def test_finding_of_the_last_attempt_does_not_stop_the_next(tmp_path):
    """A rule reports once more while an attempt ends: that is about the attempt that is over."""
    run = FakeRun(tmp_path, budget=Budget(attempts=2), command=("python", "train.py", "--device", "mps"))
    zero = [trains(), losses(*[0.0] * 30), lambda child: child.write(losses(*[0.0] * 30, first=31))]
    verdict = run.supervise(zero, LEARNS)
    assert verdict.outcome is Outcome.LEARNED, run.ends


def test_listener_that_raises_costs_nothing(tmp_path):
    run = FakeRun(tmp_path)
    run._listen = lambda event, state: 1 / 0
    verdict = run.supervise(LEARNS)
    assert verdict.outcome is Outcome.LEARNED
    assert any("internal error" in note for note in run.notes)


def test_kill_by_the_kernel_is_named(tmp_path):
    run = FakeRun(tmp_path, budget=Budget(attempts=1))
    run.machine.evidence = [events.Evidence("kernel log", "Out of memory: Killed process 100 (python)")]
    run.supervise(KILLED)
    findings = [event.finding.rule for event in run.events(events.FindingMade)]
    assert "killed-out-of-memory" in findings


def test_hang_is_found_and_ended(tmp_path):
    """No step, fetch or output for longer than the timeout. Without stacks nobody knows whether it hangs: it is a warning."""
    run = FakeRun(tmp_path, budget=Budget(attempts=1))
    run.supervise([trains(), losses(*FALLING[:20]), *[60.0] * 20, Exited(0)])
    assert [event.bound for event in run.events(events.NoProgress)]

"""What follows when an attempt ends, and what a run came to: scripted histories, no process, no clock."""

from __future__ import annotations

import msgspec
import pytest
from histories import seen

from holdfast.diagnosis.causes import cause_of
from holdfast.diagnosis.verdict import verdict
from holdfast.remedies import Remedy
from holdfast.remedies.policy import (
    after_end,
    asks_for_snapshot,
    ends_attempt,
    expected_attempt_seconds,
    is_over,
)
from holdfast.schema import events
from holdfast.schema.plan import Budget, Plan
from holdfast.schema.verdicts import Action, Finding, Outcome
from holdfast.testing.histories import TRACEBACK, ended, entries, losses, memory, started, trains

PLAN = Plan(command=["python", "train.py"], cwd="/work")
OVER = events.Resume(how="start over", why="not known")
FROM_FILE = events.Resume(how="command", checkpoint="/work/last.pt", step=8)


def decided(state, plan=PLAN, *, left=2, resume=OVER):
    return after_end(state, plan, attempts_left=left, resume=resume)


def again(number, last_step, **how):
    end = ended(last_step=last_step, **how)[0]
    return [
        events.AttemptStarted(at=100.0, attempt=number, pid=100 + number, command=["python"]),
        *trains(),
        *losses(1.0, first=last_step),
        msgspec.structs.replace(end, attempt=number),
    ]


def test_a_death_that_is_foretold_asks_for_a_snapshot():
    leak = Finding(rule="memory-leak", severity="warn", message="m")
    assert asks_for_snapshot(leak, PLAN)
    assert not asks_for_snapshot(msgspec.structs.replace(leak, severity="note"), PLAN)
    assert not asks_for_snapshot(leak, msgspec.structs.replace(PLAN, observe_only=True))
    assert not asks_for_snapshot(Finding(rule="loss-diverging", severity="warn", message="m"), PLAN)


def test_lives_are_expected_to_be_as_long_as_those_before():
    first = seen(started())
    assert expected_attempt_seconds(first) is None
    died = seen(started(), trains(), losses(1.0), ended(signal="SIGKILL"))
    assert expected_attempt_seconds(died) == max(10.0, died.attempt.ended.seconds)


def test_success_is_not_repeated():
    assert decided(seen(started(), trains(), losses(1.0), ended(0))).action is Action.STOP


def test_kill_is_retried_and_says_from_where():
    """A kill from outside leads to another attempt, and the reason names the checkpoint and its step."""
    decision = decided(seen(started(), trains(), losses(1.0), memory(9.0), ended(signal="SIGKILL")), resume=FROM_FILE)
    assert decision.action is Action.RESTART
    assert decision.cause == "killed-externally"
    assert "/work/last.pt (step 8)" in decision.why


def test_starting_over_is_said_plainly():
    decision = decided(seen(started(), trains(), losses(1.0), ended(signal="SIGSEGV")))
    assert "starting over: not known" in decision.why


def test_exception_before_the_first_step_is_not_retried():
    """A mistake in the command fails the same way each time."""
    state = seen(started(), trains(), ended(1, last_step=0, words=[*TRACEBACK, "NameError: name 'x' is not defined"]))
    assert decided(state).action is Action.STOP


def test_transient_exception_before_the_first_step_is_retried():
    state = seen(started(), trains(), ended(1, last_step=0, words=[*TRACEBACK, "OSError: Connection reset by peer"]))
    assert decided(state).action is Action.RESTART


def test_exception_after_progress_is_retried_once_then_given_up():
    """The same cause twice with no progress ends the run, before the attempts are spent."""
    words = [*TRACEBACK, "ValueError: bad batch"]
    once = seen(started(), trains(), losses(1.0), ended(1, words=words))
    assert decided(once).action is Action.RESTART
    twice = seen(started(), trains(), losses(1.0), ended(1, words=words), again(2, 10, code=1, words=words))
    assert decided(twice).action is Action.STOP
    assert "without progress" in decided(twice).why
    further = seen(started(), trains(), losses(1.0), ended(1, words=words), again(2, 300, code=1, words=words))
    assert decided(further).action is Action.RESTART


def test_kills_from_outside_spend_attempts_only():
    """Two kills at the same step are nobody's fault: only the number of attempts bounds them."""
    state = seen(started(), trains(), losses(1.0), ended(signal="SIGKILL"), again(2, 10, signal="SIGKILL"))
    assert decided(state).action is Action.RESTART
    assert decided(state, left=0).action is Action.STOP


def test_the_last_attempt_says_what_goes_on_all_the_same():
    state = seen(started(), trains(), losses(1.0), ended(signal="SIGKILL"))
    three = msgspec.structs.replace(PLAN, budget=Budget(attempts=3))
    assert (
        decided(state, three, left=0, resume=FROM_FILE).why
        == "no attempt is left (--max-attempts 3); `holdfast resume` continues from step 8"
    )
    assert decided(state, three, left=0).why == "no attempt is left (--max-attempts 3)"
    assert decided(state, three, left=0).stop_reason == "no-attempt-left"


def test_the_users_wish_is_final():
    state = seen(started(), trains(), losses(1.0), ended(signal="SIGINT", stopped_by="user"))
    assert decided(state).action is Action.STOP
    assert verdict(state).exit_status == 130
    assert verdict(seen(started(), ended(signal="SIGTERM", stopped_by="terminate"))).exit_status == 143


def test_full_disk_is_not_retried():
    state = seen(
        started(), trains(), losses(1.0), ended(1, words=[*TRACEBACK, "OSError: [Errno 28] No space left on device"])
    )
    assert "disk-full" in decided(state).why
    assert decided(state).action is Action.STOP


def test_nothing_is_started_over_while_the_saved_files_are_at_risk():
    """Where the vault could not keep a file, a restart that goes on is allowed and one that starts over is not."""
    kept = events.CheckpointsBackedUp(at=99.5, attempt=1, left_out=["/work/last.pt: no room"])
    state = seen(started(), trains(), losses(1.0), ended(signal="SIGKILL"), [kept])
    assert decided(state).action is Action.STOP
    assert decided(state, resume=FROM_FILE).action is Action.RESTART


def test_waits_grow_and_are_bounded():
    state = seen(started(), trains(), losses(1.0), ended(signal="SIGKILL"))
    waits = []
    for number in range(2, 12):
        waits.append(decided(state, left=99).wait_s)
        for entry in entries(again(number, 10 * number, signal="SIGKILL")):
            state.fold(entry)
    assert waits == sorted(waits)
    assert waits[0] == PLAN.backoff_s
    assert waits[-1] == 60.0


def test_only_a_proof_stops_and_only_where_it_may():
    """A fatal finding about learning or a hang ends an attempt; warnings, --on-finding warn and --observe-only do not."""
    fatal = Finding(rule="loss-all-zero", severity="fatal", message="m")
    assert ends_attempt(fatal, PLAN)
    assert not ends_attempt(msgspec.structs.replace(fatal, severity="warn"), PLAN)
    assert not ends_attempt(fatal, msgspec.structs.replace(PLAN, on_finding="warn"))
    assert not ends_attempt(fatal, msgspec.structs.replace(PLAN, observe_only=True))
    assert not ends_attempt(Finding(rule="killed-externally", severity="fatal", message="m"), PLAN)


@pytest.mark.parametrize(
    ("how", "cause"),
    [
        ({"signal": "SIGKILL"}, "killed-externally"),
        (
            {"signal": "SIGKILL", "evidence": [("kernel log", "Out of memory: Killed process 100")]},
            "killed-out-of-memory",
        ),
        ({"signal": "SIGSEGV"}, "crashed-segfault"),
        ({"signal": "SIGABRT"}, "crashed-abort"),
        ({"code": 1, "words": [*TRACEBACK, "ValueError: x"]}, "python-exception"),
        ({"code": 1, "words": [*TRACEBACK, "torch.OutOfMemoryError: CUDA out of memory."]}, "device-out-of-memory"),
        ({"code": 1, "words": [*TRACEBACK, "OSError: [Errno 28] No space left on device"]}, "disk-full"),
        ({"code": 7}, "exit-status-not-zero"),
    ],
)
def test_each_death_has_one_cause(how, cause):
    """However many rules speak about an end, the most telling names its cause."""
    assert cause_of(seen(started(), trains(), losses(1.0), ended(**how)).attempt) == cause


FALLING = losses(*[2.0 * 0.97**n + 0.01 * (n % 3) for n in range(100)])


def test_verdict_learned_needs_a_positive_proof():
    reached = verdict(seen(started(), trains(), FALLING, ended(0, last_step=100)))
    assert (reached.outcome, reached.exit_status) == (Outcome.LEARNED, 0)
    assert "the loss decreased from" in reached.reason


def test_verdict_unproven_names_what_is_missing():
    """A loss that only jitters proves nothing, and neither does a run whose inside was not seen; both exit with 0."""
    noise = losses(*[1.0 + 0.1 * ((n * 7919) % 13) for n in range(100)])
    for state in (seen(started(), trains(), noise, ended(0, last_step=100)), seen(started(), ended(0, last_step=0))):
        reached = verdict(state)
        assert (reached.outcome, reached.exit_status) == (Outcome.UNPROVEN, 0)
        assert reached.reason


def test_verdict_not_learned_even_when_the_command_exits_with_0():
    """Report 000: all losses zero, exit 0."""
    reached = verdict(seen(started(), trains(), losses(*[0.0] * 40), ended(0, last_step=40)))
    assert (reached.outcome, reached.exit_status) == (Outcome.NOT_LEARNED, 3)


def test_verdict_solved_task_is_learned():
    """A loss that falls to exactly zero because the task is solved is no failure."""
    state = seen(started(), trains(), losses(*[1.0 - n / 20 for n in range(20)], *[0.0] * 100), ended(0, last_step=120))
    assert verdict(state).outcome is Outcome.LEARNED


def test_verdict_takes_back_a_nan_that_was_recovered_from():
    state = seen(
        started(),
        trains(),
        FALLING,
        losses(*["nan"] * 6, first=101),
        losses(*[0.1] * 50, first=107),
        ended(0, last_step=156),
    )
    assert any(f.rule == "loss-not-finite" and f.severity == "fatal" for f in state.findings)
    assert verdict(state).outcome is Outcome.LEARNED


def test_verdict_failed_says_why():
    reached = verdict(seen(started(), trains(), losses(1.0), ended(1, words=[*TRACEBACK, "ValueError: bad shape"])))
    assert (reached.outcome, reached.exit_status) == (Outcome.FAILED, 4)
    assert "ValueError: bad shape" in reached.reason


@pytest.mark.parametrize(
    ("last_lines", "again"),
    [
        ("RuntimeError: operator torchvision::nms does not exist", False),
        (
            "TypeError: Cannot convert a MPS Tensor to float64 dtype as the MPS framework doesn't support float64.",
            False,
        ),
        ("ConnectionResetError: [Errno 104] Connection reset by peer", True),
    ],
)
def test_known_mistake_before_the_first_step_is_not_repeated(last_lines, again):
    """What would come again at the same place is not tried again; what passes is."""
    decision = decided(seen(started(), trains(), ended(1, last_step=0, words=[*TRACEBACK, last_lines])))
    assert (decision.action is Action.RESTART) == again


@pytest.mark.parametrize(
    ("message", "inside"),
    [
        ("Retrying with nothing changed: it may be random.", "retrying with nothing changed: it may be random"),
        ("Using a new process.", "using a new process"),
        ("PYTORCH_MPS_PREFER_METAL=1: it reads too far.", "PYTORCH_MPS_PREFER_METAL=1: it reads too far"),
        ("MPS lacks it.", "MPS lacks it"),
    ],
)
def test_a_remedy_is_part_of_a_sentence(message, inside):
    now = seen(started(), trains(), losses(1.0), ended(signal="SIGSEGV"))
    told = after_end(now, PLAN, attempts_left=2, resume=OVER, remedy=Remedy(message))
    assert f"; {inside}; starting over: not known" in told.why


@pytest.mark.parametrize(
    ("history", "verdict", "is_it"),
    [
        (ended(0), "learned", True),
        (ended(0), "unproven", True),
        (ended(0), "not-learned", True),
        # Stopped while its checkpoint was validated again: only the verdict is missing.
        (ended(0), "interrupted", False),
        (ended(signal="SIGTERM", rule="loss-all-zero"), "not-learned", False),
        (ended(1), "failed", False),
        (ended(signal="SIGINT", stopped_by="user"), "interrupted", False),
    ],
)
def test_a_training_that_ended_well_is_over_whatever_it_learned(history, verdict, is_it):
    judged = [events.RunEnded(at=120.0, verdict=verdict, reason="", exit_status=0)]
    assert is_over(seen(started(), trains(), losses(1.0), history, judged)) == is_it

"""A process is exchanged for a fresh one before memory is used up: late, in time, and only where that helps."""

from __future__ import annotations

import math
import sys
from dataclasses import replace
from pathlib import Path

import msgspec
import pytest

from holdfast.diagnosis.memory_forecast import leak_of
from holdfast.diagnosis.planned_restart import find_restart_reason, grows_too_fast
from holdfast.diagnosis.run_state import RunState, load_run_state
from holdfast.schema import events
from holdfast.schema.plan import Plan, Policy
from holdfast.testing.histories import entries

sys.path.insert(0, str(Path(__file__).parents[1] / "bench" / "forecast"))
from lives import GIB, MemoryHistory

PLAN = Plan(command=["python", "train.py"], cwd="/work")
LEAK = MemoryHistory("a leak", leak=0.9, epoch_s=40.0, steps=100, planned=100)


def asked(life, epochs, plan=PLAN, every=3):
    """Step and reason of the first planned restart within so many epochs, and the image then."""
    state = RunState()
    for entry in entries(life.events(epochs)):
        state.fold(entry)
        if isinstance(entry.event, events.Sample) and state.attempt.memory.count % every == 0:
            reason = find_restart_reason(state, plan)
            if reason is not None:
                return state.attempt.last_step, reason, state
    return None, None, state


@pytest.mark.parametrize(
    "life",
    [
        pytest.param(LEAK, id="with every step"),
        pytest.param(replace(LEAK, leak=0.0, jump=0.9, uneven=0.1), id="a jump each epoch"),
        pytest.param(replace(LEAK, spike=2.5, validation_s=10.0), id="with validations that take much"),
        pytest.param(replace(LEAK, mps=True), id="in the driver of a Mac"),
        pytest.param(replace(LEAK, leak=2.6), id="within a few epochs"),
        pytest.param(replace(LEAK, epochs_seen=False), id="with no epochs seen"),
    ],
)
def test_leak_is_left_in_time_and_not_before(life):
    killed_at = life.killed_at()
    step, reason, _ = asked(life, killed_at / life.steps)
    assert step is not None
    assert step < killed_at
    assert life.memory_at(step / life.steps) + life.spike >= 0.8 * life.limit
    assert "memory grew from" in reason
    assert "GiB" in reason


@pytest.mark.parametrize(
    "life",
    [
        pytest.param(replace(LEAK, leak=0.0), id="nothing grows"),
        pytest.param(replace(LEAK, leak=0.0, base=13.9), id="nothing grows, near the limit"),
        pytest.param(replace(LEAK, leak=0.0, cache=lambda x: 10.5 * min(1.0, x)), id="a cache that fills in an epoch"),
        pytest.param(replace(LEAK, leak=0.0, cache=lambda x: 2.5 * min(4, int(x))), id="a cache that fills in steps"),
        pytest.param(
            replace(LEAK, leak=0.0, cache=lambda x: 11.0 * (1 - math.exp(-x / 2))), id="a cache that fills ever slower"
        ),
        pytest.param(replace(LEAK, leak=0.3), id="little was used"),
        pytest.param(replace(LEAK, leak=0.62, planned=20), id="it ends before"),
        pytest.param(replace(LEAK, leak=0.0, spike=6.0, validation_s=12.0), id="only validations take much"),
    ],
)
def test_what_does_not_end_in_a_kill_is_left_alone(life):
    assert asked(life, 20.0)[1] is None


@pytest.mark.parametrize(
    "plan",
    [
        msgspec.structs.replace(PLAN, observe_only=True),
        msgspec.structs.replace(PLAN, on_finding="warn"),
        msgspec.structs.replace(PLAN, policy=Policy(planned_restarts=False)),
    ],
    ids=["observe only", "only warn", "not wanted"],
)
def test_plan_may_forbid_it(plan):
    step, _, state = asked(LEAK, 20.0)
    assert step is not None
    assert find_restart_reason(state, plan) is None


def test_it_needs_snapshots_that_succeed():
    step, _, state = asked(LEAK, 20.0)
    assert step is not None
    state.attempt.snapshots.failed = events.SnapshotFailed(at=1.0, step=1, why="no room")
    assert find_restart_reason(state, PLAN) is None
    assert asked(replace(LEAK, snapshots=False), 14.4)[1] is None


def test_growth_that_fills_a_fresh_process_at_once_is_for_the_ladder():
    """Two minutes from the first step to the limit, and twelve seconds for each start; and nobody knows yet whether it stops."""
    fast = replace(LEAK, leak=13.0 / 2.2)
    killed_at = fast.killed_at()
    step, _, state = asked(fast, killed_at / fast.steps, every=1)
    assert step is None
    assert grows_too_fast(state)
    assert not grows_too_fast(asked(LEAK, 10.0)[2])


def test_validation_that_would_not_fit_any_more_is_not_begun():
    """After two epochs nobody can tell a leak; but the last validation and what was added since are too much."""
    life = replace(LEAK, base=6.0, leak=1.5, spike=5.6, validation_s=12.0)
    assert life.killed_at() == 300
    step, reason, _ = asked(life, 3.0, every=1)
    assert 250 < step < 300
    assert "the next validation, near step 300, would need" in reason


def swapping(*, grown: float) -> RunState:
    """The training has grown by so many GiB; then steps become slow, and what it holds moves to swap."""
    life = replace(LEAK, leak=grown / 10.0, base=8.0, limit=24.0)
    state = load_run_state(entries(life.events(10.0)))
    now, step = state.last_at, state.attempt.last_step
    for n in range(1, 60):
        history = [
            events.Step(at=now + n, step=step + n, seconds=4.0, loss=1.0),
            events.Sample(
                at=now + n,
                rss=int((8.0 + grown) * GIB) - (n * 64 << 20),
                processes=1,
                available=int(0.5 * GIB),
                swap=n * 64 << 20,
                swap_in=n * 64 << 20,
                disk_free=100 * GIB,
            ),
        ]
        for entry in entries(history):
            state.fold(entry)
    return state


def test_swap_that_the_training_itself_has_brought_about_is_left():
    assert "the machine swaps" in (find_restart_reason(swapping(grown=6.0), PLAN) or "")
    assert find_restart_reason(swapping(grown=0.0), PLAN) is None


def test_budget_of_the_plan_is_the_limit():
    def budget(event):
        return msgspec.structs.replace(event, memory_budget=10 * GIB) if event.__class__ is events.RunStarted else event

    history = [budget(event) for event in LEAK.events(6.0)]
    state = load_run_state(entries(history))
    leak = leak_of(state)
    assert leak.limit == (10 * GIB, "the plan's budget is 10.0 GiB")
    assert leak.forecast.at == pytest.approx(100 * 7.0 / 0.9, rel=0.05)
    assert leak_of(load_run_state(entries(LEAK.events(8.0)))).limit.bytes == pytest.approx(16 * GIB, rel=0.01)


def test_young_attempt_knows_the_end_from_the_one_before():
    """So a process that is fresh near the end of the training is not exchanged once more."""
    life = replace(LEAK, leak=2.6, planned=9)
    before = [*LEAK.events(5.0)]
    begun = events.AttemptStarted(at=before[-1].at, attempt=2, pid=101, command=["python"])
    state = load_run_state(entries([*(replace_planned(event, 9) for event in before), begun]))
    for entry in entries(event for event in later(life.events(4.0), before[-1].at, 500)):
        state.fold(entry)
        assert not isinstance(entry.event, events.Sample) or find_restart_reason(state, PLAN) is None


def replace_planned(event, planned):
    return msgspec.structs.replace(event, planned=planned) if isinstance(event, events.Epoch) else event


def later(history, seconds, steps):
    """The same, after so many seconds and steps of an attempt before."""
    for event in history:
        if isinstance(event, (events.RunStarted, events.AttemptStarted)):
            continue
        changes = {"at": event.at + seconds}
        changes |= {name: getattr(event, name) + steps for name in ("step", "first", "last") if hasattr(event, name)}
        if isinstance(event, events.Epoch):
            changes["epoch"] = event.epoch + 5
        yield msgspec.structs.replace(event, **changes)

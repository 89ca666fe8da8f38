"""Every second of a run is in one bucket, and in the right one."""

from __future__ import annotations

import pytest
from histories import seen

from holdfast.diagnosis.goodput import goodput_of
from holdfast.schema import events
from holdfast.testing.histories import started


def run(*parts):
    state = seen(*parts)
    goodput = goodput_of(state)
    assert sum(goodput.buckets.values()) == pytest.approx(goodput.wall_s)
    return {name: round(seconds, 6) for name, seconds in goodput.buckets.items() if seconds > 1e-9}


def begins(at=0.0, attempt=1, step=0):
    resume = events.Resume(step=step, how="snapshot", checkpoint="/s/1") if step else None
    first = started()[:1] if attempt == 1 else []
    life = events.AttemptStarted(at=at, attempt=attempt, pid=100, command=["python", "train.py"], resume=resume)
    attached = events.ProbeAttached(
        at=at + 1.0, schema=1, pid=100, rank=0, python="3.11.7", executable="/venv/bin/python", torch="2.13.0"
    )
    return [*first, life, attached]


def steps(first, last, *, at, data_wait=0.0):
    """One a second, the first of them ending at `at`."""
    return [
        events.Step(at=at + n - first, step=n, seconds=1.0, loss=1.0, data_wait=data_wait)
        for n in range(first, last + 1)
    ]


def dies(at, attempt, began, last_step, code=None):
    return [
        events.AttemptEnded(
            at=at,
            attempt=attempt,
            code=code,
            signal=None if code == 0 else "SIGKILL",
            first_step=1,
            last_step=last_step,
            seconds=at - began,
            stopped_by=None,
            planned="",
            evidence=[],
            last_lines=[],
        )
    ]


def test_a_life_that_was_left_alone():
    spent = run(begins(), steps(1, 10, at=4.0, data_wait=0.25), dies(14.0, 1, 0.0, 10, code=0))
    assert spent == {"start_up": 3.0, "data_wait": 2.5, "training": 7.5, "other": 1.0}


def test_steps_that_are_made_again_are_lost():
    """It dies half a second after step 10, goes on from step 8, and is started again a second later."""
    spent = run(
        begins(),
        steps(1, 10, at=4.0),
        dies(13.5, 1, 0.0, 10),
        begins(at=14.5, attempt=2, step=8),
        steps(9, 10, at=17.5),
        dies(18.5, 2, 14.5, 10, code=0),
    )
    assert spent == {"start_up": 3.0, "training": 10.0, "lost_work": 2.5, "waiting": 1.0, "restart": 2.0}


def test_a_snapshot_in_the_middle_of_a_step_keeps_what_it_holds():
    """Step 3 is a second of batches. It dies when 0.9 s of it are done, of which a snapshot held 0.6."""
    snapshot = events.Snapshot(at=6.7, step=2, position=26, path="/s/1", bytes=1, stall=0.0, seconds=0.1)
    spent = run(
        begins(),
        steps(1, 2, at=5.0),
        [snapshot],
        dies(6.9, 1, 0.0, 2),
        begins(at=6.9, attempt=2, step=2),
        [events.Restored(at=8.0, step=2, path="/s/1")],
        [events.Step(at=9.3, step=3, seconds=0.4, loss=1.0)],
        dies(9.3, 2, 6.9, 3, code=0),
    )
    assert spent == {"start_up": 4.0, "training": 3.0, "lost_work": 0.3, "restart": 2.0}


def test_steps_that_only_the_heartbeat_knows_of_are_lost_once():
    """The record tells of step 4, the heartbeat of step 6; it goes on from step 3. Half a second of it was an evaluation."""
    spent = run(
        begins(),
        steps(1, 4, at=4.0),
        [events.Evaluation(at=8.0, step=4, seconds=0.5, fetches=2)],
        dies(9.5, 1, 0.0, 6),
        begins(at=9.5, attempt=2, step=3),
        steps(4, 6, at=12.5),
        dies(14.5, 2, 9.5, 6, code=0),
    )
    assert spent == {"start_up": 3.0, "training": 6.0, "evaluation": 0.5, "lost_work": 3.0, "restart": 2.0}


def test_taking_a_process_down_is_no_work():
    """It raises half a second after step 3, and torch takes a second to leave."""
    spent = run(
        begins(),
        steps(1, 3, at=4.0),
        [events.ProcessExiting(at=6.5, step=3, reason="exit")],
        dies(7.5, 1, 0.0, 3, code=1),
        begins(at=7.5, attempt=2),
        steps(1, 3, at=10.5),
        dies(12.5, 2, 7.5, 3, code=0),
    )
    assert spent == {"start_up": 3.0, "training": 3.0, "lost_work": 3.5, "restart": 2.0, "other": 1.0}


def test_time_in_which_nothing_ran_is_nobodys():
    """The machine loses power two seconds after step 4, of which the heartbeat tells, and is found an hour later."""
    spent = run(
        begins(),
        steps(1, 4, at=4.0),
        [events.RunContinued(at=3600.0, supervisor=7, holdfast="0.1.0")],
        dies(9.0, 1, 0.0, 6),
        begins(at=3600.5, attempt=2, step=3),
        steps(4, 6, at=3603.5),
        dies(3605.5, 2, 3600.5, 6, code=0),
    )
    assert spent == {"start_up": 3.0, "training": 6.0, "lost_work": 3.0, "waiting": 0.5, "restart": 2.0}

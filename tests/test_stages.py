"""Runs of several stages: what a journal tells of them, gates, and the verdict of the whole."""

from __future__ import annotations

import pytest

from holdfast.diagnosis.stages import Result, StagedRun, check_gate, load_staged_run, verdict_of
from holdfast.schema import events
from holdfast.schema.plan import Gate
from holdfast.storage.journal import Entry


def ended(stage, verdict="learned", score=0.5, **more):
    given = {"metric": "mAP50-95", "reached": score, "score": score, "best": f"/{stage}/best.pt", **more}
    return events.StageEnded(at=float(stage), stage=stage, name=f"s{stage}", verdict=verdict, reason="because", **given)


def begun(stage):
    return events.StageStarted(at=float(stage), stage=stage, of=3, name=f"s{stage}", folder=f"{stage}-s{stage}")


def staged_run(*told) -> StagedRun:
    return load_staged_run(Entry(event, 0) for event in told)


@pytest.mark.parametrize(
    ("asked", "reached", "before", "is_open"),
    [
        (Gate(), 0.2, None, True),
        (Gate(), 0.0, None, False),
        (Gate(), None, None, True),
        (Gate(at_least=0.1), None, None, False),
        (Gate(at_least=0.3), 0.2, None, False),
        (Gate(at_least=0.2), 0.2, None, True),
        (Gate(), 0.2, ended(1, score=0.4), True),
        (Gate(must_improve=True), 0.2, ended(1, score=0.4), False),
        (Gate(must_improve=True), 0.5, ended(1, score=0.4), True),
    ],
)
def test_a_gate_opens_when_enough_was_reached(asked, reached, before, is_open):
    result = Result("mAP50-95", reached, reached, None, None, None)
    assert check_gate(asked, result, before)[0] is is_open


def test_the_best_so_far_is_carried_on_and_not_the_newest():
    told = staged_run(begun(1), ended(1, score=0.6), begun(2), ended(2, score=0.4))
    assert told.best_before(3).best == "/1/best.pt"


def test_a_stage_begun_again_has_not_ended():
    told = staged_run(begun(1), ended(1, verdict="interrupted"), begun(1))
    assert told.stages[0].ended is None
    assert not told.stages[0].passed


@pytest.mark.parametrize(
    ("told", "outcome", "status"),
    [
        ([begun(1), ended(1), begun(2), ended(2)], "learned", 0),
        ([begun(1), ended(1), begun(2), ended(2, verdict="unproven")], "learned", 0),
        ([begun(1), ended(1, verdict="unproven")], "unproven", 0),
        ([begun(1), ended(1), begun(2), ended(2, verdict="failed", exit_status=4)], "failed", 4),
        ([begun(1), ended(1, verdict="interrupted", exit_status=143)], "interrupted", 143),
        (
            [begun(1), ended(1, gate="closed", gate_message="mAP50 reached 0.1; the plan asks for 0.5")],
            "not-learned",
            3,
        ),
        ([], "failed", 4),
    ],
)
def test_the_verdict_of_the_whole_is_that_of_the_last_stage(told, outcome, status):
    reached = verdict_of(staged_run(*told))
    assert (reached.outcome.value, reached.exit_status) == (outcome, status)


def test_a_stage_that_does_not_fit_is_no_failure():
    left_out = events.StageLeftOut(at=2.0, stage=2, name="s2", why="needs 9 GB of 4 GB")
    told = staged_run(begun(1), ended(1), left_out)
    assert told.stage(2, "s2").passed
    assert verdict_of(told).exit_status == 0

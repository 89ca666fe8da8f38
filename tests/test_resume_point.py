"""How the next attempt goes on, and what is said where it cannot: from short histories, without a process."""

from __future__ import annotations

import pytest
from histories import seen

from holdfast.diagnosis.explanation import explain
from holdfast.schema import events
from holdfast.schema.plan import Plan
from holdfast.supervisor.resume_point import find_resume_point
from holdfast.testing.histories import ended, losses, started, trains

PLAN = Plan(command=["python", "train.py"], cwd="/nowhere")
KILLED = ended(signal="SIGKILL")
BY_GUARD = [events.Epoch(at=5.0, epoch=1, step=8, seconds=1.0, batches=8, planned=3, source="guard")]
BY_ULTRALYTICS = [events.Epoch(at=5.0, epoch=1, step=8, seconds=1.0, batches=8, planned=3, source="ultralytics")]


def why(*history):
    return find_resume_point(seen(started(), *history), PLAN).why


def test_a_plain_loop_is_told_of_guard():
    """In the line about the next attempt, which console, panel and report show; and among the next steps."""
    lost = (trains(), losses(*[1.0] * 10), KILLED)
    assert "--checkpoint 'GLOB'" in why(*lost)
    assert "holdfast.guard" in why(*lost)
    assert any("holdfast.guard" in step.text for step in explain(seen(started(), *lost)).next_steps)


@pytest.mark.parametrize("own", [BY_GUARD, BY_ULTRALYTICS])
def test_who_has_a_way_of_their_own_is_not(own):
    lost = (trains(), losses(*[1.0] * 10), own, KILLED)
    assert "put holdfast.guard" not in why(*lost)
    assert not any("holdfast.guard" in step.text for step in explain(seen(started(), *lost)).next_steps)


def test_nobody_is_told_how_to_go_on_from_nothing():
    assert why(trains(), ended(signal="SIGKILL", last_step=0)) == "it had not completed a step"


def test_a_command_without_torch_may_have_made_any_number_of_steps():
    assert why(ended(signal="SIGKILL", last_step=0)).startswith("Holdfast does not know how this command resumes")


def test_ultralytics_that_died_too_early_says_so():
    lost = (trains(), losses(*[1.0] * 10), BY_ULTRALYTICS, KILLED)
    assert why(*lost) == "it crashed before its first snapshot and before Ultralytics saved a last.pt"


def test_a_plain_loop_is_not_promised_what_it_saved():
    """Files of its own are gone on from only by whoever tells how."""
    saved = events.Saved(at=5.0, step=8, path="state.pt", tensors=4, compared=4, matches="equal")
    over = events.RunEnded(at=120.0, verdict="failed", reason="killed", exit_status=4)
    steps = explain(seen(started(), trains(), losses(*[1.0] * 10), [saved], KILLED, [over]), "case-1").next_steps
    offered = next(step.text for step in steps if step.command == "holdfast resume case-1")
    assert "start the command again (to resume from a checkpoint, add --checkpoint and --resume-with)" in offered

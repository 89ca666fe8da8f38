"""The drills against the real supervisor, and what the command says about them.

The quick ones run here, one after the other. Those marked `quick=False` run with `holdfast drill all`: YOLO needs
ultralytics and takes long to start; the leak, the validation spike and the slow epoch need seconds of samples.
"""

from __future__ import annotations

import dataclasses
import importlib.util
import json
import sys
from pathlib import Path

import pytest
from running import holdfast

from holdfast.diagnosis.rules import by_id
from holdfast.simulator import runner
from holdfast.simulator.drills import DRILLS, find_drill
from holdfast.simulator.outcome import judge_drill
from holdfast.simulator.paths import DrillPaths

if importlib.util.find_spec("torch") is None:  # without importing it: the drills do that themselves
    pytest.skip("no torch", allow_module_level=True)

NAMES = [drill.name for drill in DRILLS]
NO_ACCELERATOR = runner._why_no_accelerator()
SHOWN = "not-a-number"
"""The one that is run through the command."""
QUICK = [drill for drill in DRILLS if drill.is_quick and drill.name not in (SHOWN, "healthy")]


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    return tmp_path_factory.mktemp("drills")


@pytest.fixture(scope="module")
def healthy(root):
    """The drill with no fault, run once."""
    if NO_ACCELERATOR is not None:
        pytest.skip(NO_ACCELERATOR)
    drill = find_drill("healthy")
    return drill, runner.run_drill(drill, root)


@pytest.mark.parametrize("drill", QUICK, ids=lambda drill: drill.name)
def test_quick_drills_pass(drill, root):
    """The fault fires, the rule finds it in time, nothing else is blamed, and the verdict is right."""
    if drill.accelerator and NO_ACCELERATOR is not None:
        pytest.skip(NO_ACCELERATOR)
    outcome = runner.run_drill(drill, root)
    assert outcome["status"] == "passed", json.dumps(outcome, indent=1)


def test_a_healthy_training_on_the_accelerator_is_left_alone(healthy):
    _, outcome = healthy
    assert outcome["status"] == "passed", json.dumps(outcome, indent=1)
    assert (outcome["verdict"], outcome["attempts"]) == ("learned", 1)


def test_a_drill_whose_fault_does_not_fire_fails(healthy):
    """The record of the healthy training, told as if it had had a fault."""
    drill, outcome = healthy
    wrong = dataclasses.replace(drill, finds={"loss-all-zero": "fatal"}, verdicts=("not-learned",), has_fault=True)
    judged = judge_drill(wrong, DrillPaths(Path(outcome["dir"]).parent), 0.0)
    assert judged["status"] == "failed"
    assert judged["problems"] == [
        "the fault did not fire, so the drill proves nothing",
        "loss-all-zero was not found",
        "the verdict is learned, expected not-learned",
    ]


def test_every_drill_says_what_it_reproduces_and_expects_known_rules():
    assert len(NAMES) == len(set(NAMES)) >= 15
    for drill in DRILLS:
        assert drill.description
        assert drill.reproduces
        assert drill.fault
        for rule in {*drill.finds, *drill.may_find, *((drill.cause,) if drill.cause else ())}:
            assert rule in by_id(), f"{drill.name} expects {rule}"


def test_list(tmp_path):
    """Without a name: one line each."""
    ran = holdfast(tmp_path, "drill")
    assert ran.code == 0
    for drill in DRILLS:
        assert f"{drill.name} " in ran.stdout
    told = json.loads(holdfast(tmp_path, "drill", "--json").stdout)
    assert [drill["name"] for drill in told] == NAMES


def test_one_drill_shown_in_full(tmp_path):
    """What happened, what Holdfast said, whether it passed, and where the record is."""
    ran = holdfast(tmp_path, "drill", SHOWN, "--dir", tmp_path / "here")
    assert ran.code == 0, ran.stdout + ran.stderr
    for words in (
        "fired       NotANumber, step 51",
        "loss-not-finite at step 51",
        "not-learned",
        "passed in",
        str(tmp_path),
    ):
        assert words in ran.stdout, words


def test_unknown_drill(tmp_path):
    ran = holdfast(tmp_path, "drill", "earthquake")
    assert ran.code == 2
    assert "no drill called 'earthquake'" in ran.stderr
    assert "losses-zero" in ran.stderr


def test_without_torch_one_clear_sentence(monkeypatch):
    monkeypatch.setattr(runner.importlib.util, "find_spec", lambda name: None if name == "torch" else sys)
    with pytest.raises(runner.UsageError, match="this Python has no torch"):
        runner.select_drills("all")


def test_what_a_drill_needs_and_is_not_there_skips_it(monkeypatch, root):
    yolo = find_drill("loss-component-zero")
    assert yolo is not None
    monkeypatch.setattr(runner.importlib.util, "find_spec", lambda name: None if name == "ultralytics" else sys)
    monkeypatch.setattr(runner, "_why_no_accelerator", lambda: None)
    (_, before), (_, after) = runner.run_all((yolo,), root)
    assert before is None
    assert (after["status"], after["problems"]) == ("skipped", ["this Python has no ultralytics"])

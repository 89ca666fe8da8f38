"""The drills against the real supervisor, and what the command says about them.

The quick ones run here, one after the other: some seconds each. Those marked `quick=False` (YOLO needs ultralytics and more
time than all others together, the leak needs seconds of memory samples) run with `holdfast drill all`.
"""

from __future__ import annotations

import json
import sys

import pytest
from running import holdfast

pytest.importorskip("torch")

from holdfast.judge.rules import by_id
from holdfast.lab import running
from holdfast.lab.accelerator import why_not
from holdfast.lab.drills import all_drills, drill_named, names

DRILLS = all_drills()
QUICK = [drill for drill in DRILLS if drill.quick]


@pytest.fixture(scope="session")
def root(tmp_path_factory):
    return tmp_path_factory.mktemp("drills")


@pytest.mark.parametrize("drill", QUICK, ids=lambda drill: drill.name)
def test_quick_drills_pass(drill, root):
    """The fault fires, the rule finds it in time, nothing else is blamed, and the verdict is right."""
    if drill.accelerator and why_not() is not None:
        pytest.skip(why_not())
    outcome = running.run_drill(drill, root)
    assert outcome["status"] == "passed", json.dumps(outcome, indent=1)


def test_a_drill_whose_fault_does_not_fire_fails(root, monkeypatch):
    """The healthy training, told as if it had a fault: nothing fired, nothing was found, the verdict is another."""
    import dataclasses

    control = drill_named("healthy")
    assert control is not None
    told_wrong = dataclasses.replace(control, finds={"loss-all-zero": "fatal"}, verdicts=("not-learned",), fires=True)
    outcome = running.run_drill(told_wrong, root)
    assert outcome["status"] == "failed"
    assert outcome["problems"][:2] == [
        "the fault did not fire, so nothing was shown",
        "loss-all-zero was not found",
    ]


def test_every_drill_says_what_it_reproduces_and_expects_known_rules():
    assert len(names()) == len(set(names())) >= 15
    for drill in DRILLS:
        assert drill.says
        assert drill.reproduces
        assert drill.fault
        for rule in {*drill.finds, *drill.also, *((drill.cause,) if drill.cause else ())}:
            assert rule in by_id(), f"{drill.name} expects {rule}"


def test_list(tmp_path):
    """Without a name: one line each."""
    ran = holdfast(tmp_path, "drill")
    assert ran.code == 0
    for drill in DRILLS:
        assert f"{drill.name} " in ran.stdout
    told = json.loads(holdfast(tmp_path, "drill", "--json").stdout)
    assert [drill["name"] for drill in told] == names()


def test_one_drill_shown_in_full(tmp_path):
    """What happened, what Holdfast said, whether it passed, and where the record is."""
    ran = holdfast(tmp_path, "drill", "not-a-number", "--dir", tmp_path / "here")
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
    monkeypatch.setattr(running.importlib.util, "find_spec", lambda name: None if name == "torch" else sys)
    with pytest.raises(running.UsageError, match="this Python has no torch"):
        running.chosen("all")


def test_what_a_drill_needs_and_is_not_there_skips_it(monkeypatch, root):
    yolo = drill_named("loss-component-zero")
    assert yolo is not None
    monkeypatch.setattr(running.importlib.util, "find_spec", lambda name: None if name == "ultralytics" else sys)
    monkeypatch.setattr(running, "_no_accelerator", lambda: None)
    (_, before), (_, after) = running.run_all((yolo,), root)
    assert before is None
    assert (after["status"], after["problems"]) == ("skipped", ["this Python has no ultralytics"])

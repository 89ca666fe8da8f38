"""The Ultralytics adapter in a real training, as the supervisor would start it."""

import os
import signal
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import probe_harness
import pytest
from holdfast.probe.holdfast_probe.frameworks.ultralytics.callbacks import instances_of
from holdfast.probe.holdfast_probe.frameworks.ultralytics.resume_last_pt import why_not_resumable, why_other_training
from squares import make_squares

import holdfast.probe
from holdfast.probe.holdfast_probe import protocol
from holdfast.probe.holdfast_probe.step_log import Record, window_line
from holdfast.schema import events

pytest.importorskip("ultralytics")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Eight images of one square each, and the script that trains on them."""
    return make_squares(tmp_path_factory.mktemp("squares"))


def attempt(folder, number, how, **environment):
    """One life of the training; its exit status and what the probe wrote."""
    attempt_dir = folder / f"attempt-{number}"
    attempt_dir.mkdir()
    variables = {
        **os.environ,
        "OMP_NUM_THREADS": "1",
        "YOLO_CONFIG_DIR": str(folder),
        "YOLO_OFFLINE": "true",
        "PYTHONPATH": os.pathsep.join([str(Path(holdfast.probe.__file__).parent), os.environ["PYTHONPATH"]]),
        protocol.ATTEMPT_DIR: str(attempt_dir),
        **environment,
    }
    command = [sys.executable, str(folder / "train.py"), str(folder), how]
    done = subprocess.run(command, env=variables, capture_output=True, timeout=240, cwd=folder, check=False)
    lines = (attempt_dir / protocol.rank_file(0)).read_bytes().splitlines()
    return done.returncode, [events.decode(line) for line in lines]


@pytest.fixture(scope="module")
def killed(folder):
    status, told = attempt(folder, 1, "dies")
    assert status == -signal.SIGKILL
    return told


@pytest.fixture(scope="module")
def resumed(folder, killed):
    checkpoint = folder / "runs" / "squares" / "weights" / "last.pt"
    status, told = attempt(
        folder,
        2,
        "lives",
        **{protocol.RESUME: "framework", protocol.CHECKPOINT: str(checkpoint), protocol.FIRST_STEP: "2"},
    )
    assert status == 0
    return told


def of(kind, told):
    return [event for event in told if type(event) is kind]


def test_steps_carry_their_loss_components(killed):
    """Each step knows the parts of its own loss, by the names that Ultralytics prints."""
    steps = of(events.Step, killed)
    assert [step.step for step in steps] == [1, 2, 3]
    assert all(set(step.parts) == {"box_loss", "cls_loss", "dfl_loss"} for step in steps)
    assert all(step.grad_norm is not None for step in steps)


def test_steps_count_their_labelled_objects(killed):
    """Each image of the four in a batch is a mosaic of up to four squares."""
    assert all(1 <= step.instances <= 16 for step in of(events.Step, killed))


def test_objects_are_counted_by_their_labels():
    """A batch that is no dictionary, or has no labels, tells nothing; one with no object tells zero."""
    labels = SimpleNamespace(shape=(7, 1))
    assert instances_of({"img": None, "cls": labels}) == 7
    assert instances_of({"cls": SimpleNamespace(shape=(0, 1))}) == 0
    assert instances_of({"img": None}) is None
    assert instances_of([labels]) is None


def test_counts_of_objects_reach_the_lines():
    """Zero is told, unknown is not; a window sums what is known."""
    empty, full, unknown = Record(), Record(), Record()
    empty.instances, full.instances = 0, 5
    assert empty.to_fields()["instances"] == 0
    assert "instances" not in unknown.to_fields()
    assert window_line([empty, full, unknown], [])["instances"] == 5
    assert "instances" not in window_line([unknown], [])


def test_epochs_are_those_of_the_trainer(killed):
    """With the planned number, and without those that exhausted loaders would suggest."""
    told = [(epoch.epoch, epoch.batches, epoch.planned, epoch.source) for epoch in of(events.Epoch, killed)]
    assert told == [(1, 2, 3, "ultralytics")]


def test_metrics_follow_each_validation(killed):
    """mAP, fitness and validation losses, with the epoch that they belong to."""
    (metrics,) = of(events.Metrics, killed)
    assert (metrics.epoch, metrics.step) == (1, 2)
    assert {"fitness", "metrics/mAP50-95(B)", "val/box_loss"} <= set(metrics.values)


def test_checkpoints_have_their_paths_and_are_known_as_averages(folder, killed):
    """Ultralytics saves to memory and writes the bytes: the paths are told, and the EMA in float16 is recognised."""
    weights = folder / "runs" / "squares" / "weights"
    saved = of(events.Saved, killed)
    assert {event.path for event in saved} == {str(weights / "last.pt"), str(weights / "best.pt")}
    assert {event.matches for event in saved} <= {"average", "cast"}
    assert all(event.nonfinite == 0 and event.compared > 0 for event in saved)


def test_nothing_of_the_adapter_failed(killed, resumed):
    """No part of the probe was switched off on the way."""
    assert [note for note in of(events.ProbeNote, killed + resumed) if "failed" in note.what] == []


def test_the_resumed_training_goes_on_from_the_checkpoint(resumed):
    """Epoch 1 is not made again; epochs 2 and 3 are, and the steps are numbered on."""
    assert [epoch.epoch for epoch in of(events.Epoch, resumed)] == [2, 3]
    assert of(events.Step, resumed)[0].step == 3
    notes = [note.what for note in of(events.ProbeNote, resumed)]
    assert "ultralytics resumes from its checkpoint" in notes


def test_the_last_metrics_are_those_of_the_best_checkpoint(resumed):
    """After the last epoch Ultralytics validates best.pt; that belongs to no epoch."""
    assert [(metrics.epoch, metrics.source) for metrics in of(events.Metrics, resumed)] == [
        (2, "ultralytics"),
        (3, "ultralytics"),
        (None, "ultralytics, best.pt at the end"),
    ]


FAKE = """
import torch
class Model:
    def train(self):
        weight = torch.nn.Parameter(torch.ones(1))
        optimizer = torch.optim.SGD([weight], lr=0.1)
        weight.square().backward()
        optimizer.step()
"""


@pytest.mark.parametrize("before", [False, True], ids=["before the first step", "after one"])
def test_a_refused_resume_counts_from_the_start(tmp_path, before):
    """Where the checkpoint is gone the training starts over, and so does the numbering, if nothing has been told yet; else
    a note says so."""
    package = tmp_path / "ultralytics" / "engine"
    package.mkdir(parents=True)
    (tmp_path / "ultralytics" / "__init__.py").touch()
    (package / "__init__.py").touch()
    (package / "model.py").write_text(FAKE)
    probed = probe_harness.run(
        tmp_path,
        f"""
        import os, torch
        if {before}:
            torch.optim.SGD([torch.ones(1, requires_grad=True)], lr=0.1).step()
        from ultralytics.engine.model import Model
        Model().train()
        print("HOLDFAST_FIRST_STEP" in os.environ)
        """,
        HOLDFAST_RESUME="framework",
        HOLDFAST_CHECKPOINT=str(tmp_path / "last.pt"),
        HOLDFAST_FIRST_STEP="500",
    )
    assert probed.out == "False\n"
    assert probed.of(events.ProbeAttached)[0].first_step == (500 if before else 0)
    assert probed.steps == ([501, 502] if before else [1])
    assert any("step numbers continue from step 500" in note for note in probed.notes) == before


GOOD = {"epoch": 1, "optimizer": {}, "ema": "a module", "train_args": {"epochs": 3, "data": "/d/a.yaml", "name": "x2"}}


def test_a_checkpoint_that_cannot_be_resumed_is_told_apart():
    """Ultralytics would raise on each of these; the training then starts as the user asked."""
    assert why_not_resumable(GOOD) is None
    assert "stripped" in why_not_resumable({**GOOD, "epoch": -1, "optimizer": None})
    assert "done" in why_not_resumable({**GOOD, "epoch": 2})
    assert "not a training checkpoint" in why_not_resumable({"state_dict": {}})
    assert "no model" in why_not_resumable({**GOOD, "ema": None})


def test_a_script_that_trains_twice_resumes_the_right_call():
    """Settings that a remedy may change do not matter; data, epochs and name say which training it is."""
    saved = GOOD["train_args"]
    assert why_other_training(saved, {"data": "a.yaml", "epochs": 3, "name": "x", "batch": 2, "imgsz": 32}) is None
    assert why_other_training(saved, {}) is None
    assert "data is" in why_other_training(saved, {"data": "b.yaml"})
    assert "epochs is" in why_other_training(saved, {"epochs": 5})
    assert "name is" in why_other_training(saved, {"name": "second"})
    assert "several" in why_other_training(saved, {"data": ["a.yaml", "b.yaml"]})

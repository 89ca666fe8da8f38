"""The learning checks on real trainings: silent on sound ones of many styles, and on those that cannot learn, not.

Each dry run is a fork of one process that has torch imported: see dry_run_programs. The device of the first field report is the
simulated one, which is registered once a process and for ever; so this file runs itself for it.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from holdfast.diagnosis.device_parity import StepRecord, step_agreement
from holdfast.diagnosis.overfit import loss_curve, same_curve
from holdfast.preflight.case_contexts import mac
from holdfast.preflight.checks import all_checks, device_steps_agree

torch = pytest.importorskip("torch")
CHECKS = [
    check for check in all_checks() if check.kind == "learning" or check.id in ("device-operators", "device-canaries")
]
STYLES = (
    *(
        "plain_classifier",
        "cnn_momentum",
        "transformer_lm",
        "padded_bag_of_words",
        "zero_rate_first_epoch",
        "one_cycle",
    ),
    *("frozen_backbone", "gan", "policy_gradient_zero_surrogate", "lbfgs_closure", "accumulation", "bfloat16_weights"),
)
LEARNED_BY_HEART = set(STYLES) - {"gan", "policy_gradient_zero_surrogate", "lbfgs_closure"}
"""Not where two optimizers step, where the loss is 0 by construction, and where the training is over before."""


def of_program(folder: Path, kind: str, name: str):
    import dry_run_programs as programs

    return programs.results_of(CHECKS, programs.run_in_scratch(folder, programs.PROGRAMS / kind / f"{name}.py"))


@pytest.mark.parametrize("name", STYLES)
def test_a_sound_training_passes(tmp_path, name):
    """And where one batch can be given again at all, it was learned by heart."""
    results = of_program(tmp_path, "healthy", name)
    assert [result for result in results.values() if result.status in ("warn", "fatal")] == []
    assert results["learning-first-steps"].status == "passed"
    assert results["device-operators"].message == "nothing to compare: everything ran on the CPU"
    assert (results["learning-one-batch"].status == "passed") == (name in LEARNED_BY_HEART), results


@pytest.mark.parametrize(
    ("name", "check"),
    [
        ("weight_is_integer_division", "learning-first-steps"),
        ("loss_made_anew", "learning-one-batch"),
        ("pictures_divided_to_zero", "learning-depends-on-data"),
        ("writes_into_a_temporary", "learning-all-move"),
    ],
)
def test_what_cannot_learn_is_stopped(tmp_path, name, check):
    results = of_program(tmp_path, "faulty", name)
    assert results[check].status == "fatal", results


def test_courses():
    assert loss_curve([2.0, 1.9, 1.6, 1.2, 1.0, 0.9, 0.8, 0.7]).clear
    assert not loss_curve([2.0, 1.9, 1.6]).clear
    assert not loss_curve([2.0, float("nan"), 1.0, 1.0, 1.0, 1.0, 1.0, 1.0]).clear
    assert loss_curve([2.0] * 9).constant
    assert same_curve([2.0, 1.0, 0.5], [2.0, 1.0, 0.5]) == "equal"
    assert same_curve([2.0, 1.0, 0.5], [2.0, 1.01, 0.5]) == "alike"
    assert same_curve([2.0, 1.0, 0.5], [2.0, 1.9, 1.8]) == "different"


# --- YOLO, on the simulated device and on the CPU -----------------------------------------------------------------------


def show_yolo() -> dict[str, dict[str, str]]:
    """In a process of its own."""
    import dry_run_programs as programs
    from ultralytics.engine import trainer

    from holdfast.simulator import accelerator, injection
    from holdfast.simulator.accelerator.faults import ScalarWriteSpreads
    from holdfast.simulator.trainings import mixture, squares

    def first_report() -> None:
        injection.Faults({"folder": ".", "device": {}, "zero": {}}).patch_trainer(trainer)
        squares.train_yolo(epochs=50, device="sim")

    def sound() -> None:
        squares.train_yolo(epochs=50, device="cpu")

    def lies() -> None:
        accelerator.switch_on(ScalarWriteSpreads())
        mixture.Training("sim", "AdamW", steps=100).run()

    short = {"steps": 1, "curve_steps": 11, "seconds": 0.1}
    return {
        "first report": told_of(programs, first_report, **short),
        "sound": told_of(programs, sound, steps=1, curve_steps=14, seconds=200.0),
        "lies": told_of(programs, lies, **short),
    }


def told_of(programs, program, **asked) -> dict[str, str]:
    with tempfile.TemporaryDirectory() as folder:
        come = programs.run_in_scratch(Path(folder), program, curve_seconds=60.0, **asked)
        caches = [path.name for path in Path(folder).rglob("*.cache")]
    results = programs.results_of(CHECKS, come)
    findings = [found.message for result in results.values() for found in result.findings]
    return {
        **{name: f"{it.status}: {it.message}" for name, it in results.items()},
        "findings": " ".join(findings),
        "caches": str(caches),
    }


@pytest.fixture(scope="module")
def yolo():
    pytest.importorskip("ultralytics")
    from holdfast.simulator.accelerator import why_not

    if why_not() is not None:
        pytest.skip(why_not())
    usual = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    done = subprocess.run(
        [sys.executable, __file__], env={**usual, "OMP_NUM_THREADS": "1"}, capture_output=True, text=True, timeout=250, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout.splitlines()[-1])


def test_the_first_field_report_is_stopped(yolo):
    """Box and dfl losses of exactly 0 on a device whose operators are all right: known after some ten steps."""
    assert yolo["first report"]["learning-first-steps"].startswith("fatal"), yolo
    assert "box_loss and dfl_loss were exactly 0" in yolo["first report"]["findings"]
    assert yolo["first report"]["device-operators"].startswith("passed"), yolo


def test_a_sound_yolo_passes(yolo):
    status = {name: said.partition(":")[0] for name, said in yolo["sound"].items() if name.startswith("learning")}
    assert not {"warn", "fatal"} & set(status.values()), yolo
    assert yolo["sound"]["findings"] == ""
    assert yolo["sound"]["caches"] == "[]", "Ultralytics keeps them beside the labels"
    assert status["learning-one-batch"] == status["learning-depends-on-data"] == status["learning-all-move"] == "passed"


def test_a_device_that_lies_is_stopped_by_its_operator(yolo):
    """In a plain loop: the operator by its name, the known issue, and the canary for it."""
    assert yolo["lies"]["device-operators"].startswith("fatal"), yolo["lies"]
    assert yolo["lies"]["device-canaries"].startswith("fatal"), yolo["lies"]
    assert "aten.copy_.default is wrong on sim:0 (forward, step 1)" in yolo["lies"]["findings"]
    assert "sim:0 has a known bug: " in yolo["lies"]["findings"]


# --- whole steps --------------------------------------------------------------------------------------------------------


def agreement(device: float = 1.0, again: float = 1.0, cpu: float | None = 1.0):
    def steps(loss: float) -> list[StepRecord]:
        return [StepRecord(n, [loss / n], {"0.0": [loss, loss]}, {"0.0": [1.0, 0.5]}) for n in (1, 2, 3)]

    on_cpu = [] if cpu is None else steps(cpu)
    return step_agreement(steps(device), steps(again), on_cpu, [steps(cpu * (1 + 1e-7))] if cpu is not None else [])


def test_steps_that_agree_pass_and_say_what_was_not_compared():
    assert device_steps_agree.make_answer(agreement(), asked_cpu=True, got_cpu=True).findings == ()
    alone = device_steps_agree.make_answer(agreement(cpu=None), asked_cpu=False, got_cpu=False)
    assert alone.findings == ()
    assert "they were not run on the CPU: Holdfast cannot change the device of this training" in alone.message


@pytest.mark.parametrize(
    ("more", "message"),
    [({"again": 1.2}, "gave different results when repeated"), ({"cpu": 0.8}, "but they differ from the CPU")],
)
def test_steps_that_do_not_agree_stop_it(more, message):
    (found,) = device_steps_agree.make_answer(agreement(**more), asked_cpu=True, got_cpu=True).findings
    assert found.severity == "fatal"
    assert message in found.message
    assert found.evidence


def test_the_device_can_be_changed_where_it_is_a_setting():
    assert device_steps_agree.can_change_device(mac(command=("yolo", "train", "model=yolo11n.yaml")))
    assert device_steps_agree.can_change_device(mac(command=("python", "train.py", "--device", "mps")))
    assert not device_steps_agree.can_change_device(mac(command=("python", "train.py")))


if __name__ == "__main__":
    import op_check_programs

    op_check_programs.import_yolo()
    print(json.dumps(show_yolo()))

"""The operator check: each lie of a single operator is found and named, and honest devices are left alone.

A device is registered once a process and for ever, and the check ends the process that it checks. So this file runs itself
as a program, which forks for each case and prints what came out. The whole matrix is bench/op_check.
"""

from __future__ import annotations

import fcntl
import json
import os
import subprocess
import sys
from dataclasses import asdict

import pytest

STEPS = {"results of the previous call": 2}
"""Lies that need more than one step to show."""


# --- what the other process does ----------------------------------------------------------------------------------------


def show_plain():
    return {**of_the_catalogue(), **of_races(), **of_programs()}


def told(checked):
    return {"findings": checked.findings, "ended": checked.ended, "output": checked.output[-800:]}


def of_the_catalogue():
    import op_check_programs as programs

    from holdfast.simulator.accelerator.catalogue import BENIGN_DEVICES, OP_FAULTS

    seen = {"lies": {}, "honest": {}}
    for lie in OP_FAULTS:
        if lie.plain is not None and not lie.race:
            checked = programs.check(programs.plain(lie.optimizer), lie.plain(), steps=STEPS.get(lie.name, 1))
            seen["lies"][lie.name] = {"missed": programs.missed(lie, checked), **told(checked)}
    for case in BENIGN_DEVICES:
        checked = programs.check(programs.plain(), case.make() if case.make else None, steps=2)
        seen["honest"][case.name] = told(checked)
    return seen


def of_races():
    import op_check_programs as programs

    from holdfast.simulator.accelerator.op_faults import CopyRaces

    racing, clean = (asdict(programs.agreement(programs.plain, make, steps=2)) for make in (CopyRaces, None))
    by_operators = told(programs.check(programs.plain(), CopyRaces(), steps=1))
    return {"race": {"by operators": by_operators, "by steps": racing, "clean": clean}}


def of_programs():
    import op_check_programs as programs
    import torch
    from torch import nn

    from holdfast.simulator.accelerator.benign_devices import LowPrecisionProducts
    from holdfast.simulator.accelerator.faults import Fault, ZeroResult

    class NotThere(Fault):
        def trigger(self, call):
            raise NotImplementedError("The operator 'aten::tril' is not currently implemented for the MPS device")

    def compiled():
        torch.compile(programs.plain())()

    def by_default():
        torch.set_default_device("sim")
        torch.set_default_dtype(torch.float64)
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 1))
        optimizer = torch.optim.Adam(model.parameters())
        while True:
            model(torch.arange(8.0).reshape(2, 4)).square().sum().backward()
            optimizer.step()

    def needs_tril():
        torch.ones(3, 3, device="sim").tril()

    def everything_on_the_cpu():
        model = nn.Linear(2, 1)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        while True:
            model(torch.ones(1, 2)).sum().backward()
            optimizer.step()

    return {
        "no time": told(programs.check(programs.plain(), None, steps=1, seconds=0.0)),
        "compiled": told(programs.check(compiled, ZeroResult("convolution"), steps=1)),
        "by default": told(programs.check(by_default, ZeroResult("mm"), steps=1)),
        "raises": told(programs.check(needs_tril, NotThere("tril"), steps=1)),
        "cpu": told(programs.check(everything_on_the_cpu, None, steps=2)),
        "rough products": programs.check(programs.plain(), LowPrecisionProducts(), steps=1).ended["devices"]["sim"],
    }


def show_yolo():
    import op_check_programs as programs

    from holdfast.simulator.accelerator.faults import ScalarWriteSpreads

    programs.import_yolo()
    lie, clean = (
        programs.check(programs.yolo(), ScalarWriteSpreads(), steps=1),
        programs.check(programs.yolo(), None, steps=1),
    )
    return {"lie": told(lie), "clean": told(clean)}


if __name__ == "__main__":
    print(json.dumps(globals()["show_" + sys.argv[1]]()))
    sys.exit()

# --- the tests ----------------------------------------------------------------------------------------------------------

pytest.importorskip("torch")


def other_process(asked):
    from holdfast.simulator.accelerator import why_not

    if why_not() is not None:
        pytest.skip(why_not())
    # Without tests/light: torch's compiler is imported once here, for all forks.
    usual = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    done = subprocess.run(
        [sys.executable, __file__, asked],
        env={**usual, "OMP_NUM_THREADS": "1"}, capture_output=True, text=True, timeout=250, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


@pytest.fixture(scope="module")
def seen(tmp_path_factory):
    """Once for all workers of a test run: whoever comes second waits and reads."""
    folder = tmp_path_factory.getbasetemp()
    shared = (folder.parent if "PYTEST_XDIST_WORKER" in os.environ else folder) / "op_check.json"
    with shared.with_suffix(".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not shared.exists():
            shared.write_text(json.dumps(other_process("plain")))
        return json.loads(shared.read_text())


def lies():
    from holdfast.simulator.accelerator.catalogue import OP_FAULTS

    return [lie.name for lie in OP_FAULTS if lie.plain is not None and not lie.race]


def honest_devices():
    from holdfast.simulator.accelerator.catalogue import BENIGN_DEVICES

    return [case.name for case in BENIGN_DEVICES]


@pytest.mark.parametrize("name", lies())
def test_each_lie_is_found_and_named(seen, name):
    """With its kind of wrong and, where there is one, its known issue; and no other operator is accused."""
    shown = seen["lies"][name]
    assert shown["missed"] is None, shown["output"]


@pytest.mark.parametrize("name", honest_devices())
def test_an_honest_device_is_left_alone(seen, name):
    """Also one that rounds everything to bfloat16; and every call was compared."""
    shown = seen["honest"][name]
    assert shown["findings"] == []
    assert shown["ended"]["compared"] == shown["ended"]["calls"] > 500
    assert shown["ended"]["signatures_compared"] == shown["ended"]["signatures"]
    assert (
        shown["ended"]["message"]
        == f"{shown['ended']['calls']} of {shown['ended']['calls']} calls in 2 steps were compared"
    )


def test_a_finding_says_all_that_is_needed(seen):
    """Operator with overload, layout, how wrong, where in the program, the known issue, and a way around that was tried."""
    found = seen["lies"]["strides of a convolution's weight are ignored"]["findings"][0]
    assert (found["operator"], found["step"], found["phase"]) == ("aten.convolution.default", 1, "forward")
    weight = next(tensor for tensor in found["tensors"] if tensor["argument"] == "weight")
    assert (weight["shape"], weight["stride"]) == ([8, 3, 3, 3], [9, 72, 3, 1])
    assert (weight["dtype"], weight["device"], weight["contiguous"]) == ("float32", "sim:0", False)
    figures = found["figures"]
    assert figures["max_abs"] > 1000 * figures["tolerance"]
    assert 0 < figures["wrong"] <= figures["of"] == 6 * 8 * 8 * 8
    assert "mixture.py" in found["place"]["yours"]
    assert found["known"]["issues"] == ["P#192212"]
    assert (found["contiguous_helps"], found["steady"]) == (True, True)
    assert ".contiguous()" in found["workaround"]


def test_a_backward_operator_leads_to_the_forward_line(seen):
    found = seen["lies"]["an embedding's gradients overwrite each other"]["findings"][0]
    assert found["phase"] == "backward"
    assert found["place"]["node"] == "EmbeddingBackward0"
    assert "mixture.py" in found["place"]["yours"]
    assert found["place"]["yours"].endswith("in forward")


def test_an_optimizers_operator_is_known_as_such(seen):
    found = seen["lies"]["the optimizer's square root of large tensors"]["findings"][0]
    assert found["phase"] == "optimizer"


def test_a_call_that_is_wrong_only_sometimes_is_said_to_be(seen):
    assert seen["lies"]["results of the previous call"]["findings"][0]["steady"] is False


def test_a_race_shows_in_whole_steps_and_not_operator_by_operator(seen):
    """Comparing each operator waits for each, and the copy is done by then."""
    assert seen["race"]["by operators"]["findings"] == []
    assert seen["race"]["by steps"]["wrong"]
    assert "non_blocking" in seen["race"]["by steps"]["message"]


def test_whole_steps_of_a_device_that_is_right_agree_with_the_cpu(seen):
    clean = seen["race"]["clean"]
    assert (clean["races"], clean["wrong"]) == ([], [])
    assert clean["compared"] > 50


def test_without_time_nothing_is_compared_and_it_says_so(seen):
    ended = seen["no time"]["ended"]
    assert ended["compared"] == ended["signatures_compared"] == 0
    assert ended["skipped"] == {"no time": ended["calls"]}


def test_a_compiled_program_is_checked_as_it_is_written_and_that_is_said(seen):
    shown = seen["compiled"]
    assert [found["operator"] for found in shown["findings"]] == ["aten.convolution.default"], shown["output"]
    assert any("torch.compile" in note for note in shown["ended"]["notes"])


def test_a_default_device_and_type_do_not_mislead_it(seen):
    """What the checker makes for itself stays on the CPU."""
    shown = seen["by default"]
    assert [(found["operator"], found["kind"]) for found in shown["findings"]] == [("aten.mm.default", "zero")]
    assert shown["ended"]["compared"] == shown["ended"]["calls"], shown["ended"]


def test_an_operator_that_the_device_lacks_is_a_finding(seen):
    (found,) = seen["raises"]["findings"]
    assert (found["operator"], found["kind"], found["known"]["id"]) == ("aten.tril.default", "raises", "F19")


def test_a_training_on_the_cpu_has_nothing_to_compare(seen):
    assert seen["cpu"]["ended"]["message"] == "nothing to compare: everything ran on the CPU"
    assert seen["cpu"]["ended"]["steps"] == 2


def test_rough_products_are_recognised_by_a_trial(seen):
    """As TF32 keeps them; all else stays float32."""
    assert (seen["rough products"]["matrix"], seen["rough products"]["plain"]) == (2.0**-10, 2.0**-23)


@pytest.mark.long
def test_yolo_with_the_scalar_write_bug_and_without():
    shown = other_process("yolo")
    found = shown["lie"]["findings"]
    assert [(f["operator"], f["kind"], f["known"]["id"]) for f in found] == [
        ("aten.copy_.default", "written-elsewhere", "F01")
    ], shown["lie"]["output"]
    assert any("ultralytics" in line for line in found[0]["place"].values())
    assert shown["clean"]["findings"] == []
    assert shown["clean"]["ended"]["compared"] == shown["clean"]["ended"]["calls"] > 4000, shown["clean"]["output"]


def test_when_time_runs_short_what_is_new_comes_first():
    """Past the budget, a signature that was compared is passed over and one that was not is compared."""
    import torch

    from holdfast.probe.holdfast_probe.op_check.dispatch_mode import OpChecker
    from holdfast.probe.holdfast_probe.op_check.operators import Operator

    checker = OpChecker(torch, None, seconds=10.0, steps=2)
    torch.autograd.set_detect_anomaly(False)
    add = Operator(torch, torch.ops.aten.add.Tensor)
    old, new = [torch.ones(2)], [torch.ones(3)]
    assert checker._should_compare(add, old)
    checker.spent = 6.0
    assert not checker._should_compare(add, old), "half of the time is for the second step"
    checker.step = 2
    assert checker._should_compare(add, old)
    checker.spent = 15.0
    assert not checker._should_compare(add, old)
    assert checker._should_compare(add, new)
    checker.spent = 20.0
    assert not checker._should_compare(add, [torch.ones(4)]), "not for ever"


SCRIPT = """
import torch
model = torch.nn.Linear(2, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(100):
    try:
        model(torch.rand(1, 2)).sum().backward()
        optimizer.step()
    except BaseException:
        pass
    print("survived", flush=True)
"""


def checked(folder, **asked):
    """The script under the bootstrap, as the supervisor would start it."""
    from probe_harness import attempt, environment

    from holdfast.probe.holdfast_probe import protocol

    with attempt(folder):
        return subprocess.run(
            [sys.executable, "-c", SCRIPT],
            env=environment(folder, **{protocol.CHECK: json.dumps(asked)}), start_new_session=True,
            capture_output=True, text=True, timeout=120, check=False,
        )  # fmt: skip


def test_the_check_ends_a_training_that_catches_everything(tmp_path):
    """Status 0 after two steps, and the attempt's folder says so."""
    done = checked(tmp_path, op_check={"steps": 2, "seconds": 5})
    assert (done.returncode, done.stdout.split()) == (0, ["survived"]), done.stderr
    ended = json.loads((tmp_path / "op_check.jsonl").read_text().splitlines()[-1])
    assert (ended["event"], ended["steps"]) == ("op-check-ended", 2)
    assert ended["message"].startswith("nothing to compare")
    goodbye = json.loads((tmp_path / "rank-0.jsonl").read_text().splitlines()[-1])
    assert (goodbye["event"], goodbye["reason"]) == ("process-exiting", "checked")


def test_steps_are_recorded_from_the_same_random_numbers_each_time(tmp_path):
    """The script seeds nothing; what one life draws the next one draws too."""
    records = []
    for name in ("one", "two"):
        done = checked(tmp_path, record={"steps": 2, "name": name})
        assert (done.returncode, done.stdout.split()) == (0, ["survived"]), done.stderr
        lines = [json.loads(line) for line in (tmp_path / f"steps-{name}.jsonl").read_text().splitlines()]
        records.append([(line["losses"], line["gradients"], line["weights"]) for line in lines])
    assert len(records[0]) == 2
    assert records[0] == records[1]


def test_a_step_that_raised_is_not_waited_for():
    """A training that catches an error in a step and goes on still comes to its end."""
    import torch

    from holdfast.probe.holdfast_probe.op_check import Steps

    counted = []
    steps = Steps(torch, lambda _: None, lambda _, counts: counted.append(counts))
    try:
        weight = torch.nn.Parameter(torch.ones(1))
        optimizer = torch.optim.SGD([weight], lr=0.1)
        with pytest.raises(ZeroDivisionError):
            optimizer.step(lambda: 1 / 0)
        optimizer.step()
        torch.optim.SGD([weight], lr=0.1).step()
        optimizer.step()
    finally:
        steps.remove()
    assert counted == [True, False, True]
    assert steps.count == 2


# --- whole steps, from records written by hand --------------------------------------------------------------------------


def record(step=1, loss=1.0, norm=2.0, total=0.5):
    from holdfast.diagnosis.device_parity import StepRecord

    return StepRecord(step, [loss], {"0.0": (norm, total)}, {"0.0": (10.0, 1.0)})


def test_what_rounding_explains_is_no_disagreement():
    from holdfast.diagnosis.device_parity import compare_steps

    noise = [[record()], [record(loss=1.002)]]
    assert compare_steps([record(loss=1.01)], [record()], noise) == []
    (found,) = compare_steps([record(loss=1.1)], [record()], noise)
    assert (found.step, found.kind, found.one, found.other) == (1, "loss", 1.1, 1.0)


def test_a_device_that_does_not_repeat_itself_races():
    from holdfast.diagnosis.device_parity import step_agreement

    noise = [[record(loss=1.00001, norm=2.00001)]]
    shown = step_agreement([record()], [record(norm=3.0)], [record()], noise)
    assert not shown.agrees
    assert "gave different results when repeated" in shown.message
    assert shown.races[0].kind == "gradient"
    assert step_agreement([record()], [record()], [record()], noise).agrees


def test_nan_and_missing_tensors_disagree():
    from holdfast.diagnosis.device_parity import StepRecord, compare_steps

    noise = [[record()], [record(loss=1.002)]]
    assert compare_steps([record(loss=float("nan"))], [record()], noise)[0].kind == "loss"
    without = StepRecord(1, [1.0], {}, {"0.0": (10.0, 1.0)})
    assert {found.kind for found in compare_steps([without], [record()], noise)} == {"gradient"}
    read = StepRecord.read({"step": 1, "losses": ["nan"], "gradients": {}, "weights": {}})
    assert read.losses[0] != read.losses[0]

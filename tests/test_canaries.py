"""Canaries: each bug that is publicly known shows in a program of a few operators, and nothing else sets one off.

A device is registered once a process and for ever, so all of it happens in one other process: this file, run as a program.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

SIM = "sim"


def bugs():
    """Each bug, and the canary that it sets off."""
    from holdfast.simulator.accelerator import faults, op_faults

    return {
        "scalar writes spread": (faults.ScalarWriteSpreads(), "scalar_writes"),
        "scalar writes are lost": (op_faults.ScalarWriteLost(), "scalar_writes"),
        "boolean counts": (faults.WrongCount(), "boolean_counts"),
        "long products": (op_faults.PastReduction(), "long_products"),
        "expanded gradients": (op_faults.ZeroThroughExpanded(), "expanded_gradients"),
        "addcmul_ into gaps": (faults.LostWrite("addcmul_"), "writes_into_gaps"),
        "addcdiv_ into gaps": (faults.LostWrite("addcdiv_"), "writes_into_gaps"),
        "random_ into gaps": (faults.LostWrite("random_"), "random_into_gaps"),
        "normal_ into gaps": (faults.LostWrite("normal_"), "random_into_gaps"),
        "convolution's weight": (op_faults.WeightStridesIgnored(), "convolution_weight_strides"),
        "argmax with NaN": (op_faults.NanIgnored(), "greatest_with_nan"),
        "argsort of columns": (op_faults.SortsAlongWrongDim(), "sorted_columns"),
        "cumsum of int64": (op_faults.NarrowSum(), "long_integer_sums"),
        "boolean fill": (op_faults.FillMissesOffset(), "boolean_fill_at_offset"),
    }


def main():
    import torch

    from holdfast.probe.holdfast_probe.op_check import canaries
    from holdfast.simulator.accelerator import switch_on

    def wrong(device):
        return {result["canary"]: result["wrong"] for result in canaries.run_all(torch, device) if result["wrong"]}

    switch_on()
    seen = {"clean": wrong(SIM), "cpu": wrong("cpu"), "bugs": {}}
    before = torch.get_rng_state()
    canaries.run_all(torch, SIM)
    seen["random numbers kept"] = torch.equal(before, torch.get_rng_state())
    for name, (fault, _) in bugs().items():
        switch_on(fault)
        seen["bugs"][name] = wrong(SIM)
    print(json.dumps(seen))


if __name__ == "__main__":
    main()
    sys.exit()

pytest.importorskip("torch")


@pytest.fixture(scope="module")
def seen():
    from holdfast.simulator.accelerator import why_not

    if why_not() is not None:
        pytest.skip(why_not())
    done = subprocess.run(
        [sys.executable, __file__],
        env={**os.environ, "OMP_NUM_THREADS": "1"}, capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


def test_silent_on_a_cpu_and_on_a_device_that_is_right(seen):
    assert seen["cpu"] == {}
    assert seen["clean"] == {}


def test_the_trainings_random_numbers_stay_what_they_were(seen):
    assert seen["random numbers kept"]


@pytest.mark.parametrize("bug", list(bugs()))
def test_each_bug_sets_off_its_canary_and_no_other(seen, bug):
    assert list(seen["bugs"][bug]) == [bugs()[bug][1]]


def test_it_says_what_came_out_instead(seen):
    said = seen["bugs"]["scalar writes spread"]["scalar_writes"]
    assert (
        said == "zeros(3) with 1 written to index 1 and 3 to index 2 gives [0.0, 3.0, 3.0] instead of [0.0, 1.0, 3.0]"
    )


def test_the_file_alone_answers_under_another_interpreter():
    """As the supervisor asks it, which has no torch of its own."""
    from holdfast.probe.holdfast_probe.op_check import canaries

    source = Path(canaries.__file__).read_text()
    done = subprocess.run(
        [sys.executable, "-c", source, "cpu"], capture_output=True, text=True, timeout=120, check=True
    )
    answers = json.loads(done.stdout)
    assert [answer["wrong"] for answer in answers] == [None] * len(answers)
    assert {answer["id"] for answer in answers} == {"F01", "F04", "F11", "F12", "F13", "F14"}

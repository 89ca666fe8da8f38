"""Devices: how their names are read, and that a new kind of device is one entry in a table."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace

import pytest

from holdfast.diagnosis.run_state import RunState
from holdfast.preflight.case_contexts import linux
from holdfast.preflight.checks import device_canaries, device_usable
from holdfast.preflight.checks.interpreter import Reply
from holdfast.probe.holdfast_probe import devices as in_probe
from holdfast.remedies import remedy_for
from holdfast.remedies.command_line import values_in
from holdfast.schema import events
from holdfast.schema.devices import DEVICES, DeviceKind, device_kind, hide_accelerators, parse_device
from holdfast.schema.plan import Plan, Policy
from holdfast.schema.verdicts import Finding
from holdfast.storage.journal import Entry
from holdfast.storage.plan.values import check_device
from holdfast.testing.histories import ended, entries, losses, started, trains


@pytest.fixture
def npu9(monkeypatch):
    """A kind of device that is added as one entry."""
    monkeypatch.setitem(DEVICES, "npu9", DeviceKind("npu9", "a new accelerator", hidden_by="NPU9_VISIBLE"))


# --- names ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("value", "names"),
    [
        (0, ["cuda:0"]),
        ("0,1", ["cuda:0", "cuda:1"]),
        ([0, 1], ["cuda:0", "cuda:1"]),
        ("[0, 1]", ["cuda:0", "cuda:1"]),
        ("cuda", ["cuda:0"]),
        ("cuda:1", ["cuda:1"]),
        ("gpu", ["cuda:0"]),
        ("-1", ["cuda:0"]),
        ("MPS", ["mps"]),
        ("mps:0", ["mps"]),
        ("cpu", ["cpu"]),
        ("xpu:2", ["xpu:2"]),
        ("privateuseone:0", ["privateuseone:0"]),
    ],
)
def test_names_of_a_device(value, names):
    assert parse_device(value).names == names
    assert device_kind(value) == names[0].partition(":")[0]


@pytest.mark.parametrize("value", [None, "", "auto", "None"])
def test_values_that_name_no_device(value):
    device = parse_device(value)
    assert device_kind(value) == ""
    assert not device.kind.is_accelerator
    assert not device.kind.is_known


@pytest.mark.parametrize("value", ["rig-7", "$GPU", "cuda:$RANK", "cuda:", "9" * 5000, "cuda:²", "0:1"])
def test_names_outside_the_table(value):
    """Nothing is known of it, except that it is not the CPU."""
    assert not parse_device(value).kind.is_known
    assert parse_device(value).kind.is_accelerator
    assert parse_device(value).names == [value.lower()]


def test_the_first_device_has_many_names():
    assert len({parse_device(value) for value in ("cuda", "cuda:0", "0", 0, "gpu", "GPU:0")}) == 1
    assert parse_device("cuda") != parse_device("cuda:1")


def test_one_kind_is_meant_by_an_index():
    assert [kind.name for kind in DEVICES.values() if kind.is_default_of_indices] == ["cuda"]
    assert [kind.name for kind in DEVICES.values() if not kind.is_accelerator] == ["cpu"]


@pytest.mark.parametrize("value", ["auto", "cpu", "mps", "cuda", "cuda:1", "0, 1", "-1", "xpu", "npu:0,1", 0, [0, 1]])
def test_devices_in_a_plan(value):
    assert check_device(value) is None


@pytest.mark.parametrize(
    ("value", "near"), [("gpu", "cuda"), ("GPU", "cuda"), ("MPS", "mps"), ("mps:0", "mps"), ("cup", "cpu")]
)
def test_device_in_a_plan_that_is_misspelt(value, near):
    assert check_device(value) == f'is "{value}": did you mean "{near}"?'


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("mps", "mps"),
        ("0,1", "0,1"),
        ("gpu", "gpu"),
        ("cuda:1", "cuda:1"),
        ("auto", None),
        ("$GPU", None),
        ("-1", None),
    ],
)
def test_devices_in_a_command(text, value):
    assert values_in(["python", "train.py", f"--device={text}"], {}).get("device") == value


# --- a new kind is one entry ------------------------------------------------------------------------------------------


def test_new_device_in_a_plan_and_a_command(npu9):
    assert parse_device("npu9:1,2").names == ["npu9:1", "npu9:2"]
    assert check_device("npu9:1") is None
    assert values_in(["python", "train.py", "--device", "npu9"], {}) == {"device": "npu9"}
    assert hide_accelerators() == {"CUDA_VISIBLE_DEVICES": "", "NPU9_VISIBLE": ""}


def test_new_device_is_not_known_without_its_entry():
    assert check_device("npu9") is not None
    assert values_in(["python", "train.py", "--device", "npu9"], {}) == {}


def failed_run(device):
    """A run on this device whose loss is always 0."""
    finding = Finding(rule="loss-all-zero", severity="fatal", message="", corrupt_from=1)
    memory = events.Memory(at=0.6, step=1, device=device)
    state = RunState()
    for entry in entries([*started(), *trains(), memory, *losses(0.0, 0.0), *ended(1, last_step=2)]):
        state.fold(entry)
    state.fold(Entry(events.FindingMade(at=99.0, finding=finding), 1))
    return state


def changes(device, command, **policy):
    plan = Plan(trainer="command", cwd="/work", command=command.split(), policy=Policy(**policy))
    remedy = remedy_for(failed_run(device), plan, "loss-all-zero")
    return {change.setting: change.after for change in remedy.changes} if remedy is not None else None


def test_remedies_leave_a_new_device(npu9):
    assert changes("npu9:0", "python train.py --device npu9") == {"--device": "cpu"}
    assert changes("npu9:0", "python train.py --device npu9", devices=["npu9", "npu9:1"]) == {"--device": "npu9:1"}
    assert changes("npu9:0", "python train.py") == {"environment.NPU9_VISIBLE": ""}
    assert changes("cpu", "python train.py --device cpu") is None


def test_checks_test_a_new_device(npu9):
    """The checks run their programs on it, under its name in torch."""
    ran = []
    reply = Reply(({"device": "npu9:1", "problem": None, "seconds": 0.1, "results": [{"wrong": None}]},))
    context = replace(linux(device="npu9:1"), run_python=lambda _p, arguments, *_: (ran.append(arguments), reply)[1])
    assert context.trains_on("npu9") is True
    assert context.trains_on("cpu") is False
    assert device_usable.run(context).findings == ()
    assert device_canaries.run(context).message == "1 of 1 tests for known bugs passed on npu9:1"
    assert ran == [["npu9:1"], ["npu9:1"]]


# --- in the training process ------------------------------------------------------------------------------------------


class FakeTorch:
    """A torch with one more type of device, whose functions are named as those of torch.cuda."""

    def __init__(self):
        self.calls = []
        self.backends = SimpleNamespace()
        self.npu9 = SimpleNamespace(
            memory_allocated=lambda device: 100 + device.index,
            memory_reserved=lambda device: 200 + device.index,
            max_memory_allocated=lambda device: 300 + device.index,
            mem_get_info=lambda _device: (1, 1000),
            empty_cache=lambda: self.calls.append("empty_cache"),
            is_available=lambda: True,
            is_initialized=lambda: True,
            device_count=lambda: 2,
            get_rng_state_all=lambda: [State(1), State(2)],
            set_rng_state_all=self.calls.append,
        )


class State(int):
    def clone(self):
        return State(self)


NPU9 = SimpleNamespace(type="npu9", index=1)
MPS = SimpleNamespace(type="mps", index=0)


def test_probe_reads_the_memory_of_a_new_device():
    torch = FakeTorch()
    assert in_probe.is_accelerator(NPU9)
    assert in_probe.read_memory(torch, NPU9) == {"allocated": 101, "reserved": 201, "peak": 301}
    assert in_probe.read_memory_limit(torch, NPU9) == 1000
    assert in_probe.empty_cache(torch, NPU9)
    assert torch.calls == ["empty_cache"]


def test_probe_saves_the_random_state_of_a_new_device(monkeypatch):
    monkeypatch.setattr(in_probe, "WITH_RNG", (*in_probe.WITH_RNG, "npu9"))
    torch = FakeTorch()
    states = in_probe.get_rng_states(torch)
    assert states == {"npu9": [1, 2]}
    in_probe.set_rng_states(torch, states)
    in_probe.set_rng_states(torch, {"npu9": [State(1)], "cuda": [State(1)]})
    assert torch.calls == [[1, 2]], "a state of another number of devices, or of devices that do not exist, is ignored"


def test_probe_does_not_initialize_a_device(monkeypatch):
    monkeypatch.setattr(in_probe, "WITH_RNG", ("npu9",))
    torch = FakeTorch()
    torch.npu9.is_initialized = lambda: False
    assert in_probe.get_rng_states(torch) == {}


def test_probe_knows_the_other_names_of_mps():
    """torch.mps has functions without a device, one random state, and in older versions no is_available."""
    torch, calls = FakeTorch(), []
    torch.backends.mps = SimpleNamespace(is_available=lambda: True)
    torch.mps = SimpleNamespace(
        current_allocated_memory=lambda: 10,
        driver_allocated_memory=lambda: 20,
        recommended_max_memory=lambda: 30,
        get_rng_state=lambda: State(4),
        set_rng_state=calls.append,
    )
    assert in_probe.read_memory(torch, MPS) == {"allocated": 10, "driver": 20}
    assert in_probe.read_memory_limit(torch, MPS) == 30
    assert not in_probe.empty_cache(torch, MPS)
    assert in_probe.get_rng_states(torch) == {"mps": 4}
    in_probe.set_rng_states(torch, {"mps": State(4)})
    assert calls == [4]


def test_probe_reads_no_memory_of_the_cpu():
    for kind in ("cpu", "meta"):
        assert in_probe.read_memory(FakeTorch(), SimpleNamespace(type=kind)) == {}

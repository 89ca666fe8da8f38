"""The simulated accelerator by itself: a device that computes as the CPU does, and each of its faults, one by one.

A device is registered once a process and for ever, so all of it happens in one other process: this file, run as a program.
"""

from __future__ import annotations

import copy
import json
import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest

SIM = "sim"


# --- what the other process does: functions whose names begin with "show", each giving what it saw -----------------------


def train(device, optimizer="AdamW", steps=30):
    import torch
    from torch import nn

    torch.manual_seed(0)
    x = torch.randn(64, 8)
    y = x.sum(1, keepdim=True).to(device)
    layers = nn.Linear(8, 16), nn.BatchNorm1d(16), nn.Tanh(), nn.Dropout(0.1), nn.Linear(16, 1)
    model = nn.Sequential(*layers).to(device)
    optimizer = getattr(torch.optim, optimizer)(model.parameters(), lr=0.01)
    losses = []
    for _ in range(steps):
        optimizer.zero_grad()
        loss = nn.functional.mse_loss(model(x.to(device)), y)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        losses.append(loss.item())
    return losses, model, optimizer


def show_same_as_cpu(torch, switch_on):
    switch_on()
    (losses, model, _), (cpu_losses, cpu_model, _) = train(SIM), train("cpu")
    state, cpu_state = model.state_dict(), cpu_model.state_dict()
    return {
        "losses": losses == cpu_losses,
        "fell": losses[-1] < losses[0],
        "device": str(state["0.weight"].device),
        "weights": all(torch.equal(state[name].cpu(), cpu_state[name]) for name in cpu_state),
    }


def show_convolutions_close_to_cpu(torch, switch_on):
    from torch import nn

    def trained(device):
        torch.manual_seed(0)
        images = torch.randn(4, 3, 16, 16).to(device)
        model = nn.Sequential(
            nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.SiLU(), nn.MaxPool2d(2), nn.Upsample(scale_factor=2), nn.Conv2d(8, 1, 3)
        ).to(device)  # fmt: skip
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
        for _ in range(5):
            optimizer.zero_grad()
            loss = model(images).square().mean()
            loss.backward()
            optimizer.step()
        return loss.item()

    switch_on()
    return [trained(SIM), trained("cpu")]


def show_factories(torch, switch_on):
    switch_on()
    base = torch.zeros(2, device=SIM)
    made = {
        "tensor": torch.tensor([1, 2], device=SIM),
        "as_tensor": torch.as_tensor([1.0], device=SIM),
        "new_tensor": base.new_tensor([3.0]),
        "arange": torch.arange(4, device=SIM),
        "full": torch.full((2,), 7.0, device=SIM),
        "eye": torch.eye(2, device=SIM),
        "list index": torch.arange(4, device=SIM)[[3, 1]],
        "mask": torch.arange(4, device=SIM)[torch.tensor([True, False, True, False], device=SIM)],
        "from a tensor": torch.tensor(torch.ones(1, device=SIM)),
        "resized": torch.arange(3, device=SIM).repeat_interleave(2),
    }
    return {name: [value.device.type, value.tolist()] for name, value in made.items()}


def show_state_dicts_through_the_cpu(torch, switch_on, folder):
    switch_on()
    _, model, optimizer = train(SIM, steps=3)
    path = Path(folder, "state.pt")
    torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict()}, path)
    on_lab = torch.load(path, weights_only=True)["model"]
    on_cpu = torch.load(path, weights_only=True, map_location="cpu")["model"]
    other = copy.deepcopy(model)
    other.load_state_dict(on_cpu)
    return {
        "devices": [on_lab["0.weight"].device.type, on_cpu["0.weight"].device.type],
        "equal": all(
            torch.equal(value.cpu(), other.state_dict()[name].cpu()) for name, value in model.state_dict().items()
        ),
        "half": str(next(other.half().parameters()).dtype),
    }


def show_zero_result(torch, switch_on):
    from holdfast.simulator.accelerator.faults import ZeroResult

    switch_on(ZeroResult("add", after=1))
    one = torch.ones(2, device=SIM)
    return [(one + one).tolist(), (one + one).tolist()]


def show_not_a_number(torch, switch_on):
    from holdfast.simulator.accelerator.faults import NotANumber

    switch_on(NotANumber("mul_", after=2))
    one = torch.ones(2, device=SIM)
    return [str(one.mul_(2.0).tolist()) for _ in range(3)]


def show_lost_write(torch, switch_on):
    from holdfast.simulator.accelerator.faults import LostWrite

    switch_on(LostWrite("add_"))
    square = torch.zeros(2, 2, device=SIM)
    square.t().add_(1.0)
    after_transposed = square.sum().item()
    square.add_(1.0)
    return [after_transposed, square.sum().item()]


def show_scalar_write(torch, switch_on):
    from holdfast.simulator.accelerator.faults import ScalarWriteSpreads

    switch_on(ScalarWriteSpreads())
    x = torch.zeros(3, device=SIM)
    x[1] = 1
    x[2] = 3
    untouched = torch.zeros(3, device=SIM)
    untouched[:] = 5
    return [x.tolist(), untouched.tolist()]


def show_wrong_count(torch, switch_on):
    from holdfast.simulator.accelerator.faults import WrongCount

    switch_on(WrongCount())
    values = torch.arange(6.0, device=SIM)
    mask = values > 2
    first, second = values[mask], values[mask]
    counts = [len(first), len(second)]
    mask.sum().item()  # reading back ends the quick succession
    counts.append(len(values[mask]))
    values[mask] = 0.0
    try:
        values[mask] = values[mask]
    except (RuntimeError, IndexError) as error:
        return [*counts, str(error)]
    return counts


def show_memory_limit(torch, switch_on):
    from holdfast.simulator.accelerator.memory_model import GB, MemoryModel

    switch_on(memory_model=MemoryModel(limit=2 * GB, scale=1024))
    kept = [torch.ones(256, 1024, device=SIM)]  # 1 MB that counts for 1 GB
    figures = [torch.sim.memory_allocated(), torch.sim.memory_reserved(), torch.sim.max_memory_allocated()]
    try:
        kept += [torch.ones(256, 1024, device=SIM) for _ in range(2)]
    except RuntimeError as error:
        del kept
        after = torch.sim.memory_allocated()
        torch.sim.empty_cache()
        return [figures, str(error), after, torch.sim.memory_reserved()]
    return figures


def show_leak(torch, switch_on):
    from holdfast.simulator.accelerator.faults import Leak

    switch_on(Leak("add", size=1000))
    one = torch.ones(1, device=SIM)
    for _ in range(5):
        one + one
    torch.sim.empty_cache()
    return torch.sim.memory_reserved() - torch.sim.memory_allocated()


def show_faults_say_that_they_fired(torch, switch_on, folder):
    from holdfast.simulator import fault_log
    from holdfast.simulator.accelerator.faults import ZeroResult

    path = Path(folder, "fired")
    os.environ[fault_log.FAULT_LOG] = str(path)
    switch_on(ZeroResult("add", from_step=3))
    one = torch.ones(1, device=SIM)
    for step in range(1, 6):
        fault_log.set_step(step)
        one + one
    return fault_log.read_faults(path)


def end_reaped(torch, switch_on):
    from holdfast.simulator.accelerator.faults import Leak
    from holdfast.simulator.accelerator.memory_model import MemoryModel, OomKiller

    switch_on(Leak("add", size=1000), memory_model=MemoryModel(oom_killer=OomKiller(total=5000)))
    one = torch.ones(1, device=SIM)
    for _ in range(100):
        one + one


def end_aborted(torch, switch_on):
    from holdfast.simulator.accelerator.faults import Abort

    switch_on(Abort("add", after=2, words=["OMP: Error #15: Initializing libomp.dylib"]))
    one = torch.ones(1, device=SIM)
    for count in range(100):
        print(count, flush=True)
        one + one


def end_hung(torch, switch_on):
    from holdfast.simulator.accelerator.faults import Hang

    switch_on(Hang("add"))
    one = torch.ones(1, device=SIM)
    stuck = threading.Thread(target=lambda: one + one, daemon=True)
    stuck.start()
    stuck.join(1.0)
    print("still there" if stuck.is_alive() else "returned", flush=True)
    os._exit(0)


def main(asked, folder):
    import torch

    from holdfast.simulator.accelerator import switch_on

    os.chdir(folder)
    if asked != "shows":
        globals()[asked](torch, switch_on)
        return
    seen = {}
    for name, function in globals().items():
        if name.startswith("show_"):
            more = (folder,) if "folder" in function.__code__.co_varnames[: function.__code__.co_argcount] else ()
            seen[name.removeprefix("show_")] = function(torch, switch_on, *more)
    print(json.dumps(seen))


if __name__ == "__main__":
    main(*sys.argv[1:])
    sys.exit()

# --- the tests ----------------------------------------------------------------------------------------------------------

pytest.importorskip("torch")


def other_process(asked, folder):
    return subprocess.run(
        [sys.executable, __file__, asked, str(folder)],
        env={**os.environ, "OMP_NUM_THREADS": "1"}, capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip


@pytest.fixture(scope="module")
def seen(tmp_path_factory):
    from holdfast.simulator.accelerator import why_not

    if why_not() is not None:
        pytest.skip(why_not())
    done = other_process("shows", tmp_path_factory.mktemp("sim"))
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


def test_trains_bit_for_bit_as_on_the_cpu(seen):
    """An MLP with batch norm, dropout, clipping and AdamW: every loss and every weight is the same."""
    assert seen["same_as_cpu"] == {"losses": True, "fell": True, "device": "sim:0", "weights": True}


def test_trains_convolutions(seen):
    """Where layouts decide the order of a sum, the result is the CPU's to the last digits."""
    on_lab, on_cpu = seen["convolutions_close_to_cpu"]
    assert on_lab == pytest.approx(on_cpu, rel=1e-5)


def test_every_way_to_make_a_tensor_makes_it_on_the_device(seen):
    devices = {name: device for name, (device, _) in seen["factories"].items()}
    assert set(devices.values()) == {SIM}, devices
    values = {name: value for name, (_, value) in seen["factories"].items()}
    assert values["list index"] == [3, 1]
    assert values["mask"] == [0, 2]
    assert values["resized"] == [0, 0, 1, 1, 2, 2]


def test_state_dicts_go_through_the_cpu(seen):
    """Saved, loaded with weights_only onto either device, copied and halved."""
    expected = {"devices": [SIM, "cpu"], "equal": True, "half": "torch.float16"}
    assert seen["state_dicts_through_the_cpu"] == expected


def test_zero_result(seen):
    assert seen["zero_result"] == [[2.0, 2.0], [0.0, 0.0]]


def test_not_a_number_after_n_calls(seen):
    assert seen["not_a_number"] == ["[2.0, 2.0]", "[4.0, 4.0]", "[nan, nan]"]


def test_a_write_to_a_destination_that_is_not_contiguous_is_lost(seen):
    assert seen["lost_write"] == [0.0, 4.0]


def test_scalar_write_as_macos_14_4_had_it(seen):
    """pytorch#122016; a write to a whole tensor is not one of them."""
    assert seen["scalar_write"] == [[0.0, 3.0, 3.0], [5.0, 5.0, 5.0]]


def test_boolean_indices_count_wrongly_in_quick_succession(seen):
    first, second, after_a_look, error = seen["wrong_count"]
    assert (first, second, after_a_look) == (3, 2, 3)
    assert "shape mismatch: value tensor of shape [2] cannot be broadcast to indexing result of shape [3]" in error


def test_memory_limit(seen):
    """Raises with MPS's words; the figures are those that the probe reads, and what is freed comes back."""
    (allocated, reserved, peak), error, after, cached = seen["memory_limit"]
    assert allocated == reserved == peak == 1 << 30
    assert error.startswith(
        "MPS backend out of memory (MPS allocated: 2.00 GB, other allocations: 0.00 GB, max allowed: 2.00"
    )
    assert after == cached == 0


def test_leak_grows_the_drivers_memory_for_ever(seen):
    assert seen["leak"] == 5000


def test_a_fault_says_at_which_step_it_fired(seen):
    (only,) = seen["faults_say_that_they_fired"]
    assert (only["what"], only["step"], only["detail"]) == ("ZeroResult", 3, "add, call 3")


def test_reaper(tmp_path):
    """SIGKILL when the memory is used up, a line in the kernel's log as macOS has it, and the figure for the machine."""
    done = other_process("end_reaped", tmp_path)
    assert done.returncode == -9
    assert "memorystatus: killing largest compressed process" in (tmp_path / "kernel.log").read_text()
    assert int((tmp_path / "unified-memory").read_text()) >= 5000


def test_abort(tmp_path):
    done = other_process("end_aborted", tmp_path)
    assert (done.returncode, done.stdout.split()) == (-6, ["0", "1", "2"])
    assert "OMP: Error #15" in done.stderr


def test_hang(tmp_path):
    assert other_process("end_hung", tmp_path).stdout.split("\n")[0] == "still there"

"""A snapshot that was taken on one kind of device loads on another, with the same numbers, and that is said to be inexact.

The other device is the simulated accelerator. It is registered once a process and for ever, so what happens on it happens in
another process: this file, run as a program.
"""

from __future__ import annotations

import contextlib
import hashlib
import io
import json
import os
import subprocess
import sys
from pathlib import Path

import torch
from torch import nn

import holdfast

SIM = "sim"
EPOCHS, STOP = 3, 7
"""It stops in the middle of the second epoch, with half of a step accumulated."""


class Stop(Exception):
    pass


def train(folder, device, stop=None):
    """One life: a digest of all that came out or, where it stops, of the state at the last snapshot; and what it said."""
    torch.manual_seed(0)
    torch.set_num_threads(1)
    model = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Tanh(), nn.Dropout(0.2), nn.Linear(8, 1)).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    loader = torch.utils.data.DataLoader(torch.linspace(-1, 1, 80).view(20, 4), batch_size=4, shuffle=True)
    said = io.StringIO()
    with (
        contextlib.suppress(Stop),
        contextlib.redirect_stderr(said),
        holdfast.guard(folder=folder, model=model, optimizer=optimizer) as run,
    ):
        on_entering = digest_of(model, optimizer)
        done = run.state.get("done", 0)
        for _ in run.epochs(EPOCHS):
            for x in run.batches(loader):
                if done == stop:
                    raise Stop
                (model(x.to(device)) - x.sum(1, keepdim=True).to(device)).square().mean().backward()
                done += 1
                if done % 2 == 0:
                    optimizer.step()
                    optimizer.zero_grad()
                run.state["done"] = done
                if done == stop:
                    run.snapshot()
    return {"entered": on_entering, "left": digest_of(model, optimizer), "said": said.getvalue()}


def digest_of(model, optimizer):
    """Every bit of the weights, their averages, what is accumulated, and the optimizer's state."""
    parameters = list(model.parameters())
    tensors = [*model.state_dict().values(), *(p.grad for p in parameters if p.grad is not None)]
    for held in optimizer.state.values():
        tensors.extend(held.values())
    assert all(tensor.device.type == parameters[0].device.type for tensor in tensors if tensor.dim())
    return hashlib.sha256(b"".join(tensor.detach().cpu().numpy().tobytes() for tensor in tensors)).hexdigest()


def main(folder):
    from holdfast.simulator.accelerator import switch_on

    switch_on()
    there = {
        "whole": train(folder / "whole on sim", SIM),
        "begun": train(folder / "begun on sim", SIM, stop=STOP),
        "ended": train(folder / "begun on cpu", SIM),
    }
    print(json.dumps(there))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
    sys.exit()

# --- the tests ----------------------------------------------------------------------------------------------------------

import pytest  # noqa: E402


@pytest.fixture(scope="module")
def lives(tmp_path_factory):
    """What each life came to: on the CPU here, on the accelerator in another process."""
    from holdfast.simulator.accelerator import why_not

    if why_not() is not None:
        pytest.skip(why_not())
    folder = tmp_path_factory.mktemp("devices")
    here = {"whole": train(folder / "whole on cpu", "cpu"), "begun": train(folder / "begun on cpu", "cpu", stop=STOP)}
    done = subprocess.run(
        [sys.executable, __file__, str(folder)],
        env={**os.environ, "OMP_NUM_THREADS": "1"}, capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    here["ended"] = train(folder / "begun on sim", "cpu")
    return {"cpu": here, SIM: json.loads(done.stdout.splitlines()[-1])}


@pytest.mark.parametrize(("then", "now"), [("cpu", SIM), (SIM, "cpu")])
def test_it_goes_on_on_the_other_device(lives, then, now):
    """It has the very state that it had there, and ends as it would have ended here: these layers compute the same on both."""
    begun, ended = lives[then]["begun"], lives[now]["ended"]
    assert ended["entered"] == begun["left"]
    assert ended["left"] == lives[then]["whole"]["left"] == lives[now]["whole"]["left"]
    assert ended["left"] != ended["entered"]


@pytest.mark.parametrize(("then", "now"), [("cpu", SIM), (SIM, "cpu")])
def test_that_is_called_inexact(lives, then, now):
    said = lives[now]["ended"]["said"]
    assert f"restored: step {STOP}" in said
    assert f"exact False, why devices: ['{then}'] then, ['{now}'] now" in said

"""Words for tests that start the real program: `holdfast` in a process of its own, on trainings made here."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import textwrap
from dataclasses import dataclass
from pathlib import Path

from holdfast.storage.folder import RunFolder
from holdfast.storage.journal import replay

HOLDFAST = Path(sys.executable).with_name("holdfast")

TRAINING = """
import os, signal, sys, time
import torch
from torch import nn

def die():
    os.kill(os.getpid(), signal.SIGKILL)

FIRST = os.environ.get("HOLDFAST_ATTEMPT", "1") == "1"
STEPS = int(os.environ.get("STEPS", "30"))
torch.manual_seed(0)
x = torch.randn(64, 8)
y = x.sum(1, keepdim=True)
model = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)

def forward(step):
    return nn.functional.mse_loss(model(x), y)

def after(step):
    pass

# --- the test's own part
{part}
# ---

start = globals().get("start", 0)
for step in range(start + 1, STEPS + 1):
    optimizer.zero_grad()
    loss = forward(step)
    loss.backward()
    optimizer.step()
    after(step)
print("done", flush=True)
"""


SAVES = """
if "--resume" in sys.argv:
    state = torch.load(sys.argv[sys.argv.index("--resume") + 1], weights_only=True)
    model.load_state_dict(state["model"])
    start = state["step"]

def after(step):
    if step % 5 == 0:
        torch.save({"model": model.state_dict(), "step": step}, "state.pt")
"""
"""A part that saves every fifth step and can go on from that."""
AGAIN = ("--checkpoint", "state.pt", "--resume-with", "--resume {checkpoint}")
"""The options that tell Holdfast how."""


def training(folder: Path, part: str = "", name: str = "train.py") -> Path:
    """A tiny training with a part of the test's own: it may define `forward`, `after`, `start`, or do anything."""
    path = folder / name
    path.write_text(TRAINING.replace("{part}", textwrap.dedent(part)))
    return path


@dataclass
class Ran:
    code: int
    stdout: str
    stderr: str
    folder: Path

    @property
    def run(self) -> RunFolder:
        return RunFolder(self.folder)

    @property
    def summary(self) -> dict:
        return json.loads(self.run.summary.read_text())

    @property
    def events(self) -> list:
        return [entry.event for entry in replay(self.run)]

    def of(self, kind) -> list:
        return [event for event in self.events if isinstance(event, kind)]

    @property
    def rules(self) -> set[str]:
        return {finding["rule"] for finding in self.summary["findings"]}


def environment(**more) -> dict[str, str]:
    return {**os.environ, "OMP_NUM_THREADS": "1", **more}


def command(folder: Path, *words, options=()) -> list[str]:
    return [str(HOLDFAST), "run", "--dir", str(folder / "run"), *map(str, options), "--", *map(str, words)]


def holdfast_run(folder: Path, *words, options=(), env=None, timeout=120) -> Ran:
    done = subprocess.run(
        command(folder, *words, options=options),
        cwd=folder, env=environment(**(env or {})), timeout=timeout, capture_output=True, text=True, errors="replace", check=False,
    )  # fmt: skip
    return Ran(done.returncode, done.stdout, done.stderr, folder / "run")


def holdfast(folder: Path, *words, env=None, timeout=120) -> Ran:
    done = subprocess.run(
        [str(HOLDFAST), *map(str, words)],
        cwd=folder, env=environment(**(env or {})), timeout=timeout, capture_output=True, text=True, check=False,
    )  # fmt: skip
    return Ran(done.returncode, done.stdout, done.stderr, folder / "run")

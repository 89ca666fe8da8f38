"""The drills: small trainings with a fault, and what Holdfast must report about each."""

# ruff: noqa: PLC0415 - torch is imported in the training's own process, and only there

from __future__ import annotations

import errno
import io
import os
import signal
import sys
import time
from pathlib import Path
from typing import Any

from holdfast.schema.plan import HangSettings
from holdfast.simulator import accelerator
from holdfast.simulator.accelerator.faults import (
    Abort,
    Fault,
    Hang,
    Leak,
    LostWrite,
    NotANumber,
    ScalarWriteSpreads,
    Slow,
    WrongCount,
    ZeroResult,
)
from holdfast.simulator.accelerator.memory_model import GB, MemoryModel, OomKiller
from holdfast.simulator.drill import Drill
from holdfast.simulator.fault_log import record_fault
from holdfast.simulator.paths import SLEEP_FILE

OPENMP_ERROR = (
    "OMP: Error #15: Initializing libomp.dylib, but found libomp.dylib already initialized.",
    "OMP: Hint This means that multiple copies of the OpenMP runtime have been linked into the program.",
)
SLEEP_HOURS = 10


def train(*faults: Fault, memory_model: MemoryModel | None = None, **options: Any) -> None:
    """Train the small network on the simulated accelerator with these faults."""
    from holdfast.simulator.trainings.plain import Training

    accelerator.switch_on(*faults, memory_model=memory_model)
    Training(**options).run()


def train_assigner_mismatch() -> None:
    from torch import nn

    from holdfast.simulator.trainings.ultralytics.utils.tal import Assigner

    assigner = Assigner()

    def assigned(model: Any, x: Any, y: Any) -> Any:
        predicted = model(x)
        targets = assigner(predicted, y, y > 0)
        return nn.functional.mse_loss(predicted, targets)

    train(WrongCount(after=60), loss=assigned)


def train_device_memory() -> None:
    import torch

    kept = []

    def keeps_its_graph(training: Any) -> None:
        if training.step > 20:
            kept.append(torch.ones(64, 1024, device="sim"))  # 256 kB, which count as 0.25 GB

    train(memory_model=MemoryModel(limit=9 * GB, scale=1024), before_step=keeps_its_graph)


class FullDisk(io.FileIO):
    """A file on a disk that has room for two kilobytes. No real disk is filled."""

    def write(self, data: Any) -> int:
        if self.tell() + len(data) > 2048:
            record_fault("the disk is full", str(self.name))
            raise OSError(errno.ENOSPC, "No space left on device", self.name)
        return super().write(data)


def train_disk_full() -> None:
    import torch

    def save(training: Any) -> None:
        if training.step == 40:
            with FullDisk("last.pt", "w") as file:
                torch.save(training.state, file)

    train(after_epoch=save)


def train_frozen_weights() -> None:
    import torch
    from torch import nn

    from holdfast.simulator.trainings.plain import network

    torch.manual_seed(1)
    model = network()
    first = model.get_submodule("0")
    first.weight = nn.Parameter(torch.randn(8, 16).t() * 0.3)  # tied or transposed weights have such strides
    train(LostWrite("addcdiv_"), model=model, optimizer=torch.optim.Adam, steps=200, pace=0.05)


def train_leak_reaped() -> None:
    memory_model = MemoryModel(oom_killer=OomKiller(), process_bytes=256 << 20)
    train(Leak("mse_loss_backward", size=2 << 20), memory_model=memory_model, steps=2000, pace=0.02)


def train_loss_component_zero() -> None:
    from holdfast.simulator.trainings.squares import train_yolo

    accelerator.switch_on(ZeroResult("gt_"))
    train_yolo(epochs=10)


def train_scalar_write() -> None:
    import torch

    def in_three_parts(model: Any, x: Any, y: Any) -> Any:
        error = model(x) - y
        gains = torch.zeros(3, device=x.device)
        gains[0] = 7.5
        gains[1] = 0.5
        gains[2] = 0.0  # this data has no landmarks
        return (gains * torch.stack([error.square().mean(), error.abs().mean(), error.mean()])).sum()

    train(ScalarWriteSpreads(), steps=400, loss=in_three_parts)


def train_sleep() -> None:
    def falls_asleep(training: Any) -> None:
        if training.step == 40:
            Path(SLEEP_FILE).write_text(str(SLEEP_HOURS * 3600))
            record_fault("sleep", f"{SLEEP_HOURS} hours")

    train(steps=96, pace=0.02, before_step=falls_asleep)


def train_truncated_checkpoint() -> None:
    import torch

    from holdfast.simulator.trainings.plain import network

    accelerator.switch_on()  # before the checkpoint is loaded, which contains tensors of the device
    start = torch.load(sys.argv[3], weights_only=True) if "--resume" in sys.argv else None
    model = network()
    if start is not None:
        model.load_state_dict(start["model"])

    def save(training: Any) -> None:
        path = Path(f"step-{training.step:03}.pt")
        if training.step < 24 or start is not None:
            torch.save(training.state, path)
            return
        whole = io.BytesIO()
        torch.save(training.state, whole)
        path.write_bytes(whole.getvalue()[: len(whole.getvalue()) // 2])
        record_fault("a kill during a save", str(path))
        os.kill(os.getpid(), signal.SIGKILL)

    train(steps=56, model=model, after_epoch=save, step=start["step"] if start is not None else 0)


def train_validation_spike() -> None:
    import torch

    def validate(training: Any) -> None:
        """Collect all predictions, which are large, before scoring them."""
        kept = []
        with torch.no_grad():
            for batch, _ in training.loader:
                training.model(batch.to("sim"))
                kept.append(torch.ones(10 << 20, device="sim"))
                time.sleep(0.15)
        record_fault("a validation that collects everything", f"{len(kept)} predictions of 40 MB")
        del kept
        torch.sim.empty_cache()

    memory_model = MemoryModel(oom_killer=OomKiller(), process_bytes=350 << 20, scale=2)
    train(memory_model=memory_model, steps=32, pace=0.05, after_epoch=validate)


DRILLS = (
    Drill(
        name="assigner-mismatch",
        description="the assigner raises a shape mismatch after many good steps: boolean indices sometimes return wrong counts",
        reproduces="field report 001; F04: ultralytics#22971, ultralytics#23853, pytorch#181867, pytorch#178497",
        fault="from the 61st on, the second of two boolean indices in quick succession selects one element too few",
        program=train_assigner_mismatch,
        finds={"assigner-shape-mismatch": "fatal"},
        verdicts=("failed",),
        within_steps=1,
        cause="assigner-shape-mismatch",
        expected_words=("shape mismatch: value tensor of shape", "ultralytics/utils/tal.py"),
    ),
    Drill(
        name="device-memory",
        description="an allocation on the device fails: its allocator's limit is reached",
        reproduces="F09: pytorch#130112",
        fault="outputs are kept in every step, on a device with a limit of 9 GB per process",
        program=train_device_memory,
        finds={"device-out-of-memory": "fatal"},
        verdicts=("failed",),
        within_steps=1,
        cause="device-out-of-memory",
    ),
    Drill(
        name="disk-full",
        description="a checkpoint cannot be written because the disk is full",
        reproduces="the checkpoints and caches of long runs; ENOSPC",
        fault="the file that torch.save writes to raises ENOSPC after two kilobytes, as a full disk would",
        program=train_disk_full,
        finds={"disk-full": "fatal"},
        verdicts=("failed",),
        within_steps=1,
        cause="disk-full",
        may_find=("checkpoint-torn",),
    ),
    Drill(
        name="epoch-blowup",
        description="the seventh epoch takes many times as long as the first six: the machine swaps",
        reproduces="field report 001 (979 s an epoch, then 39,322 s); F08: ultralytics#24065, ultralytics#22621",
        fault="from epoch 7 on, the operator mse_loss takes almost a second longer and the simulated machine reports swapping",
        program=lambda: train(Slow("mse_loss", after=48, seconds=0.8, swaps=64 << 20), steps=56),
        finds={"epoch-time-blowup": "warn"},
        expected_words=("swapped",),
        verdicts=("learned",),
        # The drill takes seconds instead of hours, so the rule's threshold must be lower.
        plan={"sample_every_s": 0.1, "rules": {"epoch-time-blowup": {"least_seconds": 2.0}}},
        machine="unified memory",
        is_quick=False,
    ),
    Drill(
        name="frozen-weights",
        description="one layer never learns: the optimizer's update of a non-contiguous weight is lost",
        reproduces="F13: pytorch#118115, pytorch#165267, pytorch#192212",
        fault="the operator addcdiv_ with a non-contiguous destination writes to a temporary",
        program=train_frozen_weights,
        finds={"weights-frozen": "fatal"},
        verdicts=("not-learned",),
        within_steps=8,  # three checks in the first steps, as far as the budget allows
        cause="weights-frozen",
    ),
    Drill(
        name="hang",
        description="training hangs in its 41st step, without an error or output",
        reproduces="F16, F20: a device that deadlocks, a worker that never answers",
        fault="the operator mse_loss does not return",
        program=lambda: train(Hang("mse_loss", after=40), pace=0.05),
        finds={"step-hang": "fatal"},
        verdicts=("failed",),
        within_steps=1,
        cause="step-hang",
        plan={"hang": HangSettings(floor_s=2.0, start_floor_s=60.0, factor=2.0, confirm_s=1.0), "grace_s": 1.0},
    ),
    Drill(
        name="healthy",
        description="nothing is wrong: a healthy training run on the simulated accelerator produces no findings",
        reproduces="the control for the other drills",
        fault="none",
        program=lambda: train(steps=112),
        finds={},
        verdicts=("learned",),
        has_fault=False,
    ),
    Drill(
        name="leak-reaped",
        description="memory grows with every step until the system kills the training process without a message",
        reproduces="field report 004 (killed in epoch 94 of 100); F07, F08: ultralytics#7471, ultralytics#24065, pytorch#181213",
        fault="every backward leaks 2 MB in the driver; an OOM killer sends SIGKILL when the machine's 1 GB is used up",
        program=train_leak_reaped,
        finds={"memory-leak": "warn", "killed-out-of-memory": "fatal"},
        verdicts=("failed",),
        cause="killed-out-of-memory",
        expected_words=("memory runs out near", "memorystatus: killing"),
        may_find=("memory-pressure",),
        plan={"sample_every_s": 0.1},
        machine="unified memory",
        is_quick=False,
    ),
    Drill(
        name="loss-component-zero",
        description="YOLO11n assigns no objects: box and dfl loss are zero from the first batch, cls is not",
        reproduces="field report 000, epoch 1; F02: ultralytics hub#1199, ultralytics#22228, pytorch#139550",
        fault="the operator gt_, which separates labelled boxes from padding, returns zeros",
        program=train_loss_component_zero,
        finds={"loss-component-zero": "fatal"},
        verdicts=("not-learned",),
        within_steps=20,
        cause="loss-component-zero",
        needs=("torch", "ultralytics"),
        is_quick=False,
    ),
    Drill(
        name="losses-zero",
        description="every loss is exactly zero, and training continues without an error",
        reproduces="field report 000; F01: pytorch#122016, pytorch#123385, ultralytics#9113",
        fault="the operator mse_loss returns zeros, forward and backward",
        program=lambda: train(ZeroResult("mse_loss"), ZeroResult("mse_loss_backward"), steps=400),
        finds={"loss-all-zero": "fatal"},
        verdicts=("not-learned",),
        within_steps=20,
        cause="loss-all-zero",
        may_find=("gradients-zero",),
    ),
    Drill(
        name="not-a-number",
        description="from the 51st step on, the loss is NaN",
        reproduces="F14, F17: pytorch#123171, pytorch#125954 (incomplete GPU work leaves garbage)",
        fault="the operator addmm returns NaN after 100 calls",
        program=lambda: train(NotANumber("addmm", after=100), steps=400),
        finds={"loss-not-finite": "warn"},  # fatal, unless the finding about NaN gradients stops the training first
        verdicts=("not-learned",),
        within_steps=5,
        may_find=("gradients-not-finite",),
    ),
    Drill(
        name="openmp-abort",
        description="the process aborts in its 41st backward pass, with the error message about two OpenMP runtimes",
        reproduces="field report 002, which suspected gradient accumulation; F25: faiss-wheels#73, pytorch#149201",
        fault="the operator mse_loss_backward writes OMP: Error #15 to stderr and aborts",
        program=lambda: train(Abort("mse_loss_backward", after=40, words=OPENMP_ERROR)),
        finds={"openmp-duplicate": "fatal"},
        verdicts=("failed",),
        within_steps=1,
        cause="openmp-duplicate",
        expected_words=("OMP: Error #15",),
    ),
    Drill(
        name="scalar-write",
        description="x=zeros(3); x[1]=1; x[2]=3 gives [0, 3, 3]: a loss whose weights are assigned like this is zero",
        reproduces="field report 000; F01: pytorch#122016 (macOS 14.4 with torch 2.2)",
        fault="a scalar written to one element also overwrites elements that were written before",
        program=train_scalar_write,
        finds={"loss-all-zero": "fatal"},
        verdicts=("not-learned",),
        within_steps=20,
        cause="loss-all-zero",
        may_find=("gradients-zero",),
    ),
    Drill(
        name="sleep",
        description="the machine sleeps for ten hours in the middle of training",
        reproduces="one of the two explanations of field report 001 (an epoch of 39,322 s after epochs of 979 s)",
        fault="the (simulated) clocks of the machine show ten hours in which nothing ran",
        program=train_sleep,
        finds={"machine-slept": "note"},
        verdicts=("learned",),
        plan={"sample_every_s": 0.1},
        machine="falls asleep",
    ),
    Drill(
        name="truncated-checkpoint",
        description="the training process is killed while it saves a checkpoint: only half of the checkpoint is on disk",
        reproduces="field report 003; checkpoints written in place (Ultralytics' last.pt)",
        fault="half of step-024.pt is written, then SIGKILL",
        program=train_truncated_checkpoint,
        finds={"checkpoint-torn": "note", "killed-externally": "warn"},
        verdicts=("learned", "unproven"),
        attempts=2,
        may_find=("killed-externally",),
        plan={"checkpoint": "step-*.pt", "resume_with": "--resume {checkpoint}"},
    ),
    Drill(
        name="validation-spike",
        description="every validation takes twice the memory of training, and leaves almost none free",
        reproduces="field report 004 (killed near the validation of epoch 94)",
        fault="validation collects its predictions: 320 MB, which count twice, on a machine with 1 GB",
        program=train_validation_spike,
        finds={"validation-memory-spike": "warn"},
        verdicts=("learned", "unproven"),
        # The machine is small, so the rule's threshold must be lower.
        plan={"sample_every_s": 0.1, "rules": {"validation-memory-spike": {"more_gib": 0.25}}},
        machine="unified memory",
        is_quick=False,
    ),
)


def find_drill(name: str) -> Drill | None:
    return next((drill for drill in DRILLS if drill.name == name), None)

"""The training reaches the device's memory limit, and torch raises an error."""

# ruff: noqa: PLC0415 - what a program imports is imported in the training's own process, and only there

from __future__ import annotations

from typing import Any

from holdfast.simulator.drill import Drill


def program() -> None:
    import torch

    from holdfast.simulator import accelerator
    from holdfast.simulator.accelerator.memory_model import GB, MemoryModel
    from holdfast.simulator.trainings.plain import Training

    kept = []

    def keeps_its_graph(training: Any) -> None:
        if training.step > 20:
            kept.append(torch.ones(64, 1024, device="sim"))  # 256 kB, which count as 0.25 GB

    accelerator.switch_on(memory_model=MemoryModel(limit=9 * GB, scale=1024))
    Training(before_step=keeps_its_graph).run()


DRILL = Drill(
    name="device-memory",
    description="an allocation on the device fails: its allocator's limit is reached",
    reproduces="F09: pytorch#130112",
    fault="outputs are kept in every step, on a device with a limit of 9 GB per process",
    program=program,
    finds={"device-out-of-memory": "fatal"},
    verdicts=("failed",),
    within_steps=1,
    cause="device-out-of-memory",
)

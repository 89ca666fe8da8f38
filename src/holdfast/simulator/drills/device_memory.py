"""The device's memory limit is met, and torch raises."""

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
            kept.append(torch.ones(64, 1024, device="sim"))  # 256 kB, which count for 0.25 GB

    accelerator.switch_on(memory_model=MemoryModel(limit=9 * GB, scale=1024))
    Training(before_step=keeps_its_graph).run()


DRILL = Drill(
    name="device-memory",
    description="an allocation on the device fails: the limit of its allocator is met",
    reproduces="F09: pytorch#130112",
    fault="outputs are kept, step after step, on a device that lets a process have 9 GB",
    program=program,
    finds={"device-out-of-memory": "fatal"},
    verdicts=("failed",),
    within=1,
    cause="device-out-of-memory",
)

"""The disk is full when a checkpoint is written. The disk is simulated, so that no real disk is filled."""

# ruff: noqa: PLC0415 - what a program imports is imported in the training's own process, and only there

from __future__ import annotations

import errno
import io
from typing import Any

from holdfast.simulator.drill import Drill
from holdfast.simulator.fault_log import record_fault

ROOM = 2048


class FullDisk(io.FileIO):
    """A file on a disk that has room for two kilobytes."""

    def write(self, data: Any) -> int:
        if self.tell() + len(data) > ROOM:
            record_fault("the disk is full", str(self.name))
            raise OSError(errno.ENOSPC, "No space left on device", self.name)
        return super().write(data)


def program() -> None:
    import torch

    from holdfast.simulator import accelerator
    from holdfast.simulator.trainings.plain import Training

    def save(training: Any) -> None:
        if training.step == 40:
            with FullDisk("last.pt", "w") as file:
                torch.save(training.state, file)

    accelerator.switch_on()
    Training(after_epoch=save).run()


DRILL = Drill(
    name="disk-full",
    description="a checkpoint cannot be written because the disk is full",
    reproduces="the checkpoints and caches of long runs; ENOSPC",
    fault="the file that torch.save writes to raises ENOSPC after two kilobytes, as a full disk would",
    program=program,
    finds={"disk-full": "fatal"},
    verdicts=("failed",),
    within_steps=1,
    cause="disk-full",
    may_find=("checkpoint-torn",),
)

"""The training is killed while it saves: the newest checkpoint is truncated, and the previous one must be used."""

# ruff: noqa: PLC0415 - what a program imports is imported in the training's own process, and only there

from __future__ import annotations

from typing import Any

from holdfast.simulator.drill import Drill


def program() -> None:
    import io
    import os
    import signal
    import sys
    from pathlib import Path

    import torch

    from holdfast.simulator import accelerator
    from holdfast.simulator.fault_log import record_fault
    from holdfast.simulator.trainings.plain import Training, network

    accelerator.switch_on()
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

    Training(steps=56, model=model, after_epoch=save, step=start["step"] if start is not None else 0).run()


DRILL = Drill(
    name="truncated-checkpoint",
    description="the training process is killed while it saves a checkpoint: only half of the checkpoint is on disk",
    reproduces="field report 003; checkpoints written in place (Ultralytics' last.pt)",
    fault="half of step-024.pt is written, then SIGKILL",
    program=program,
    finds={"checkpoint-torn": "note", "killed-externally": "warn"},
    verdicts=("learned", "unproven"),
    attempts=2,
    may_find=("killed-externally",),
    plan={"checkpoint": "step-*.pt", "resume_with": "--resume {checkpoint}"},
)

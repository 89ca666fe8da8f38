"""The training hangs without any output."""

# ruff: noqa: PLC0415 - what a program imports is imported in the training's own process, and only there

from __future__ import annotations

from holdfast.schema.plan import HangSettings
from holdfast.simulator.drill import Drill


def program() -> None:
    from holdfast.simulator import accelerator
    from holdfast.simulator.accelerator.faults import Hang
    from holdfast.simulator.trainings.plain import Training

    accelerator.switch_on(Hang("mse_loss", after=40))
    Training(pace=0.05).run()


DRILL = Drill(
    name="hang",
    description="training hangs in its 41st step, without an error or output",
    reproduces="F16, F20: a device that deadlocks, a worker that never answers",
    fault="the operator mse_loss does not return",
    program=program,
    finds={"step-hang": "fatal"},
    verdicts=("failed",),
    within_steps=1,
    cause="step-hang",
    plan={"hang": HangSettings(floor_s=2.0, start_floor_s=60.0, factor=2.0, confirm_s=1.0), "grace_s": 1.0},
)

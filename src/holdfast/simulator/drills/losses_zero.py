"""Every loss is exactly zero and so is every gradient: the first field report, in its first steps."""

# ruff: noqa: PLC0415 - what a program imports is imported in the training's own process, and only there

from __future__ import annotations

from holdfast.simulator.drill import Drill


def program() -> None:
    from holdfast.simulator import accelerator
    from holdfast.simulator.accelerator.faults import ZeroResult
    from holdfast.simulator.trainings.plain import Training

    accelerator.switch_on(ZeroResult("mse_loss"), ZeroResult("mse_loss_backward"))
    Training(steps=400).run()


DRILL = Drill(
    name="losses-zero",
    description="every loss is exactly zero, and training continues without an error",
    reproduces="field report 000; F01: pytorch#122016, pytorch#123385, ultralytics#9113",
    fault="the operator mse_loss returns zeros, forward and backward",
    program=program,
    finds={"loss-all-zero": "fatal"},
    verdicts=("not-learned",),
    within_steps=20,
    cause="loss-all-zero",
    may_find=("gradients-zero",),
)

"""The loss becomes NaN in the middle of a healthy training."""

# ruff: noqa: PLC0415 - what a program imports is imported in the training's own process, and only there

from __future__ import annotations

from holdfast.simulator.drill import Drill


def program() -> None:
    from holdfast.simulator import accelerator
    from holdfast.simulator.accelerator.faults import NotANumber
    from holdfast.simulator.trainings.plain import Training

    accelerator.switch_on(NotANumber("addmm", after=100))
    Training(steps=400).run()


DRILL = Drill(
    name="not-a-number",
    description="from the 51st step on, the loss is NaN",
    reproduces="F14, F17: pytorch#123171, pytorch#125954 (incomplete GPU work leaves garbage)",
    fault="the operator addmm returns NaN after 100 calls",
    program=program,
    finds={"loss-not-finite": "warn"},  # fatal, unless the finding about NaN gradients stops the training first
    verdicts=("not-learned",),
    within_steps=5,
    may_find=("gradients-not-finite",),
)

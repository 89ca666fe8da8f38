"""The control: nothing is wrong. A detector that reports something here would prove nothing in the other drills."""

# ruff: noqa: PLC0415 - what a program imports is imported in the training's own process, and only there

from __future__ import annotations

from holdfast.simulator.drill import Drill


def program() -> None:
    from holdfast.simulator import accelerator
    from holdfast.simulator.trainings.plain import Training

    accelerator.switch_on()
    Training(steps=112).run()


DRILL = Drill(
    name="healthy",
    description="nothing is wrong: a healthy training run on the simulated accelerator produces no findings",
    reproduces="the control for the other drills",
    fault="none",
    program=program,
    finds={},
    verdicts=("learned",),
    has_fault=False,
)

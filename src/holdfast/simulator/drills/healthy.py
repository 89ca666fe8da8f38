"""Nothing is wrong: the control. A detector that also speaks here would prove nothing elsewhere."""

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
    description="nothing is wrong: a training on the simulated accelerator is left alone",
    reproduces="the control of the other drills",
    fault="none",
    program=program,
    finds={},
    verdicts=("learned",),
    fires=False,
)

"""One epoch takes ten times as long as those before it, because the machine swaps."""

# ruff: noqa: PLC0415 - what a program imports is imported in the training's own process, and only there

from __future__ import annotations

from holdfast.simulator.drill import Drill


def program() -> None:
    from holdfast.simulator import accelerator
    from holdfast.simulator.accelerator.faults import Slow
    from holdfast.simulator.trainings.plain import Training

    accelerator.switch_on(Slow("mse_loss", after=48, seconds=0.8, swaps=64 << 20))
    Training(steps=56).run()


DRILL = Drill(
    name="epoch-blowup",
    description="the seventh epoch takes many times as long as the six before it: the machine swaps",
    reproduces="field report 001 (979 s an epoch, then 39,322 s); F08: ultralytics#24065, ultralytics#22621",
    fault="the operator mse_loss takes almost a second more, and swap fills (as the simulated machine says), from epoch 7 on",
    program=program,
    finds={"epoch-time-blowup": "warn"},
    explained=("swapped",),
    verdicts=("learned",),
    # Hours shrink to seconds here, and so must the least that counts.
    plan={"sample_every_s": 0.1, "rules": {"epoch-time-blowup": {"least_seconds": 2.0}}},
    world="unified memory",
    quick=False,
)

"""One epoch takes ten times as long as the previous ones, because the machine swaps."""

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
    description="the seventh epoch takes many times as long as the first six: the machine swaps",
    reproduces="field report 001 (979 s an epoch, then 39,322 s); F08: ultralytics#24065, ultralytics#22621",
    fault="from epoch 7 on, the operator mse_loss takes almost a second longer and the simulated machine reports swapping",
    program=program,
    finds={"epoch-time-blowup": "warn"},
    expected_words=("swapped",),
    verdicts=("learned",),
    # The drill takes seconds instead of hours, so the rule's threshold must be lower.
    plan={"sample_every_s": 0.1, "rules": {"epoch-time-blowup": {"least_seconds": 2.0}}},
    machine="unified memory",
    is_quick=False,
)

"""The assigner of a detection training crashes with an impossible shape: a boolean index returned a wrong count."""

# ruff: noqa: PLC0415 - what a program imports is imported in the training's own process, and only there

from __future__ import annotations

from typing import Any

from holdfast.simulator.drill import Drill


def program() -> None:
    from torch import nn

    from holdfast.simulator import accelerator
    from holdfast.simulator.accelerator.faults import WrongCount
    from holdfast.simulator.trainings.plain import Training
    from holdfast.simulator.trainings.ultralytics.utils.tal import Assigner

    assigner = Assigner()

    def assigned(model: Any, x: Any, y: Any) -> Any:
        predicted = model(x)
        targets = assigner(predicted, y, y > 0)
        return nn.functional.mse_loss(predicted, targets)

    accelerator.switch_on(WrongCount(after=60))
    Training(loss=assigned).run()


DRILL = Drill(
    name="assigner-mismatch",
    description="the assigner raises a shape mismatch after many good steps: boolean indices sometimes return wrong counts",
    reproduces="field report 001; F04: ultralytics#22971, ultralytics#23853, pytorch#181867, pytorch#178497",
    fault="from the 61st on, the second of two boolean indices in quick succession selects one element too few",
    program=program,
    finds={"assigner-shape-mismatch": "fatal"},
    verdicts=("failed",),
    within_steps=1,
    cause="assigner-shape-mismatch",
    expected_words=("shape mismatch: value tensor of shape", "ultralytics/utils/tal.py"),
)

"""YOLO with box and dfl loss zero while cls is not: no object is ever assigned, and the boxes are never learned."""

# ruff: noqa: PLC0415 - what a program imports is imported in the training's own process, and only there

from __future__ import annotations

from holdfast.simulator.drill import Drill


def program() -> None:
    from holdfast.simulator import accelerator
    from holdfast.simulator.accelerator.faults import ZeroResult
    from holdfast.simulator.trainings.squares import train_yolo

    accelerator.switch_on(ZeroResult("gt_"))
    train_yolo(epochs=10)


DRILL = Drill(
    name="loss-component-zero",
    description="YOLO11n assigns no objects: box and dfl loss are zero from the first batch, cls is not",
    reproduces="field report 000, epoch 1; F02: ultralytics hub#1199, ultralytics#22228, pytorch#139550",
    fault="the operator gt_, which separates labelled boxes from padding, returns zeros",
    program=program,
    finds={"loss-component-zero": "fatal"},
    verdicts=("not-learned",),
    within_steps=20,
    cause="loss-component-zero",
    needs=("torch", "ultralytics"),
    is_quick=False,
)

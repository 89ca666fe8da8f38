"""The scalar-write bug: the gains of a loss's parts are written one by one, and the last write overwrites all of them."""

# ruff: noqa: PLC0415 - what a program imports is imported in the training's own process, and only there

from __future__ import annotations

from typing import Any

from holdfast.simulator.drill import Drill


def program() -> None:
    import torch

    from holdfast.simulator import accelerator
    from holdfast.simulator.accelerator.faults import ScalarWriteSpreads
    from holdfast.simulator.trainings.plain import Training

    def in_three_parts(model: Any, x: Any, y: Any) -> Any:
        error = model(x) - y
        gains = torch.zeros(3, device=x.device)
        gains[0] = 7.5
        gains[1] = 0.5
        gains[2] = 0.0  # this data has no landmarks
        return (gains * torch.stack([error.square().mean(), error.abs().mean(), error.mean()])).sum()

    accelerator.switch_on(ScalarWriteSpreads())
    Training(steps=400, loss=in_three_parts).run()


DRILL = Drill(
    name="scalar-write",
    description="x=zeros(3); x[1]=1; x[2]=3 gives [0, 3, 3]: a loss whose weights are assigned like this is zero",
    reproduces="field report 000; F01: pytorch#122016 (macOS 14.4 with torch 2.2)",
    fault="a scalar written to one element also overwrites elements that were written before",
    program=program,
    finds={"loss-all-zero": "fatal"},
    verdicts=("not-learned",),
    within_steps=20,
    cause="loss-all-zero",
    may_find=("gradients-zero",),
)

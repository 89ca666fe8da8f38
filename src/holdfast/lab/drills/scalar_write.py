"""The scalar-write bug: a loss of three parts is filled element by element, and the last write lands on all of them.

Autograd knows nothing of it, so the weights do move: whether that is learning nobody can say, and so it is a warning.
"""

# ruff: noqa: PLC0415 - what a program imports is imported in the training's own process, and only there

from __future__ import annotations

from typing import Any

from holdfast.lab.drill import Drill


def program() -> None:
    import torch

    from holdfast.lab import accelerator
    from holdfast.lab.accelerator.faults import ScalarWriteSpreads
    from holdfast.lab.trainings.plain import Training

    def in_three_parts(model: Any, x: Any, y: Any) -> Any:
        error = model(x) - y
        parts = torch.zeros(3, device=x.device)
        parts[0] = error.square().mean()
        parts[1] = error.abs().mean()
        parts[2] = 0.0  # this data has no landmarks
        return parts.sum()

    accelerator.switch_on(ScalarWriteSpreads())
    Training(steps=64, loss=in_three_parts).run()


DRILL = Drill(
    name="scalar-write",
    says="x=zeros(3); x[1]=1; x[2]=3 gives [0, 3, 3]: a loss that is filled so comes out as zero",
    reproduces="field report 000; F01: pytorch#122016 (macOS 14.4 with torch 2.2)",
    fault="a scalar written to one element also lands where scalars were written before",
    program=program,
    finds={"loss-all-zero": "warn"},
    verdicts=("unproven", "not-learned"),
    within=20,
)

"""A weight never changes although it has a gradient: an in-place update of a non-contiguous tensor is lost."""

# ruff: noqa: PLC0415 - what a program imports is imported in the training's own process, and only there

from __future__ import annotations

from holdfast.simulator.drill import Drill


def program() -> None:
    import torch
    from torch import nn

    from holdfast.simulator import accelerator
    from holdfast.simulator.accelerator.faults import LostWrite
    from holdfast.simulator.trainings.plain import Training, network

    torch.manual_seed(1)
    model = network()
    first = model.get_submodule("0")
    first.weight = nn.Parameter(torch.randn(8, 16).t() * 0.3)  # tied or transposed weights have such strides
    accelerator.switch_on(LostWrite("addcdiv_"))
    Training(model=model, optimizer=torch.optim.Adam, steps=200, pace=0.05).run()


DRILL = Drill(
    name="frozen-weights",
    description="one layer never learns: the optimizer's update of a non-contiguous weight is lost",
    reproduces="F13: pytorch#118115, pytorch#165267, pytorch#192212",
    fault="the operator addcdiv_ with a non-contiguous destination writes to a temporary",
    program=program,
    finds={"weights-frozen": "fatal"},
    verdicts=("not-learned",),
    within_steps=8,  # three checks in the first steps, as far as the budget allows
    cause="weights-frozen",
)

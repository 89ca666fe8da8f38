"""The process aborts after many good backwards: two OpenMP runtimes in one process."""

# ruff: noqa: PLC0415 - what a program imports is imported in the training's own process, and only there

from __future__ import annotations

from holdfast.simulator.drill import Drill

LAST_WORDS = (
    "OMP: Error #15: Initializing libomp.dylib, but found libomp.dylib already initialized.",
    "OMP: Hint This means that multiple copies of the OpenMP runtime have been linked into the program.",
)


def program() -> None:
    from holdfast.simulator import accelerator
    from holdfast.simulator.accelerator.faults import Abort
    from holdfast.simulator.trainings.plain import Training

    accelerator.switch_on(Abort("mse_loss_backward", after=40, words=LAST_WORDS))
    Training().run()


DRILL = Drill(
    name="openmp-abort",
    description="the process aborts in its 41st backward pass, with the error message about two OpenMP runtimes",
    reproduces="field report 002, which suspected gradient accumulation; F25: faiss-wheels#73, pytorch#149201",
    fault="the operator mse_loss_backward writes OMP: Error #15 to stderr and aborts",
    program=program,
    finds={"openmp-duplicate": "fatal"},
    verdicts=("failed",),
    within_steps=1,
    cause="openmp-duplicate",
    expected_words=("OMP: Error #15",),
)

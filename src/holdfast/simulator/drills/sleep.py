"""The machine falls asleep in the night: hours pass, and neither a hang nor a slow epoch is to be blamed for them."""

# ruff: noqa: PLC0415 - what a program imports is imported in the training's own process, and only there

from __future__ import annotations

from typing import Any

from holdfast.simulator.drill import Drill

HOURS = 10


def program() -> None:
    from pathlib import Path

    from holdfast.simulator import accelerator
    from holdfast.simulator.fault_log import fired
    from holdfast.simulator.paths import NAP_FILE
    from holdfast.simulator.trainings.plain import Training

    def falls_asleep(training: Any) -> None:
        if training.step == 40:
            Path(NAP_FILE).write_text(str(HOURS * 3600))
            fired("sleep", f"{HOURS} hours")

    accelerator.switch_on()
    Training(steps=96, pace=0.02, before_step=falls_asleep).run()


DRILL = Drill(
    name="sleep",
    description="the machine sleeps for ten hours in the middle of the training",
    reproduces="field report 001 (an epoch of 39,322 s after epochs of 979 s), one of its two explanations",
    fault="the machine's clocks say that ten hours passed in which nothing ran (the clocks are simulated)",
    program=program,
    finds={"machine-slept": "note"},
    verdicts=("learned",),
    plan={"sample_every_s": 0.1},
    world="falls asleep",
)

"""The machine falls asleep at night: hours pass, and neither a hang nor a slow epoch may be reported."""

# ruff: noqa: PLC0415 - what a program imports is imported in the training's own process, and only there

from __future__ import annotations

from typing import Any

from holdfast.simulator.drill import Drill

HOURS = 10


def program() -> None:
    from pathlib import Path

    from holdfast.simulator import accelerator
    from holdfast.simulator.fault_log import record_fault
    from holdfast.simulator.paths import SLEEP_FILE
    from holdfast.simulator.trainings.plain import Training

    def falls_asleep(training: Any) -> None:
        if training.step == 40:
            Path(SLEEP_FILE).write_text(str(HOURS * 3600))
            record_fault("sleep", f"{HOURS} hours")

    accelerator.switch_on()
    Training(steps=96, pace=0.02, before_step=falls_asleep).run()


DRILL = Drill(
    name="sleep",
    description="the machine sleeps for ten hours in the middle of training",
    reproduces="one of the two explanations of field report 001 (an epoch of 39,322 s after epochs of 979 s)",
    fault="the (simulated) clocks of the machine show ten hours in which nothing ran",
    program=program,
    finds={"machine-slept": "note"},
    verdicts=("learned",),
    plan={"sample_every_s": 0.1},
    machine="falls asleep",
)

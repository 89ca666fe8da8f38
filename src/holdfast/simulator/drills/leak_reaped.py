"""Memory leaks with every step until the system kills the training: no traceback, no error, 70 hours lost."""

# ruff: noqa: PLC0415 - what a program imports is imported in the training's own process, and only there

from __future__ import annotations

from holdfast.simulator.drill import Drill

EACH = 2 << 20


def program() -> None:
    from holdfast.simulator import accelerator
    from holdfast.simulator.accelerator.faults import Leak
    from holdfast.simulator.accelerator.memory_model import MemoryModel, OomKiller
    from holdfast.simulator.trainings.plain import Training

    leak = Leak("mse_loss_backward", size=EACH)
    accelerator.switch_on(leak, memory_model=MemoryModel(oom_killer=OomKiller(), process_bytes=256 << 20))
    Training(steps=2000, pace=0.02).run()


DRILL = Drill(
    name="leak-reaped",
    description="memory grows with every step until the system kills the training process without a message",
    reproduces="field report 004 (killed in epoch 94 of 100); F07, F08: ultralytics#7471, ultralytics#24065, pytorch#181213",
    fault="every backward leaks 2 MB in the driver; an OOM killer sends SIGKILL when the machine's 1 GB is used up",
    program=program,
    finds={"memory-leak": "warn", "killed-out-of-memory": "fatal"},
    verdicts=("failed",),
    cause="killed-out-of-memory",
    expected_words=("memory runs out near", "memorystatus: killing"),
    may_find=("memory-pressure",),
    plan={"sample_every_s": 0.1},
    machine="unified memory",
    is_quick=False,
)

"""Every validation takes twice the memory of training, and leaves almost none free."""

# ruff: noqa: PLC0415 - what a program imports is imported in the training's own process, and only there

from __future__ import annotations

import time
from typing import Any

from holdfast.simulator.drill import Drill


def program() -> None:
    import torch

    from holdfast.simulator import accelerator
    from holdfast.simulator.accelerator.memory_model import MemoryModel, OomKiller
    from holdfast.simulator.fault_log import record_fault
    from holdfast.simulator.trainings.plain import Training

    def validate(training: Any) -> None:
        """Collect all predictions, which are large, before scoring them."""
        kept = []
        with torch.no_grad():
            for batch, _ in training.loader:
                training.model(batch.to("sim"))
                kept.append(torch.ones(10 << 20, device="sim"))
                time.sleep(0.15)
        record_fault("a validation that collects everything", f"{len(kept)} predictions of 40 MB")
        del kept
        torch.sim.empty_cache()

    accelerator.switch_on(memory_model=MemoryModel(oom_killer=OomKiller(), process_bytes=350 << 20, scale=2))
    Training(steps=32, pace=0.05, after_epoch=validate).run()


DRILL = Drill(
    name="validation-spike",
    description="every validation takes twice the memory of training, and leaves almost none free",
    reproduces="field report 004 (killed near the validation of epoch 94)",
    fault="validation collects its predictions: 320 MB, which count twice, on a machine with 1 GB",
    program=program,
    finds={"validation-memory-spike": "warn"},
    verdicts=("learned", "unproven"),
    # The machine is small, so the rule's threshold must be lower.
    plan={"sample_every_s": 0.1, "rules": {"validation-memory-spike": {"more_gib": 0.25}}},
    machine="unified memory",
    is_quick=False,
)

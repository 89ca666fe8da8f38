"""Is there enough memory to start training?

**What it checks.** Compares the available memory of the machine, or of its container, with what training needs before
its first batch: torch itself, DataLoader workers, and images that are cached in memory.

**Why.** Running out of memory is the most common cause of a crash in a long run, and on a Mac there is no error
message. If memory is already insufficient at startup, training cannot succeed.

**What to do.** Close other programs, use fewer workers, or avoid `cache=ram`. This check does not estimate the memory
for batches and validation; forecast-memory measures it.

**Severity.** `fatal` if there is not even enough memory to import torch; otherwise `warn`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from holdfast.preflight.case_contexts import RecordedMachine, linux, mac
from holdfast.preflight.checks import estimates
from holdfast.preflight.checks.check import Answer, Case, Check, CheckContext, finding, warn
from holdfast.schema.units import GIB, size

if TYPE_CHECKING:
    from collections.abc import Iterator

    from holdfast.machine import SystemMemory
    from holdfast.schema.verdicts import Finding

MIN_SHARE = 0.4
"""A share of the minimum. With less than this, even importing torch swaps."""


def run(context: CheckContext) -> Answer:
    memory = context.machine.memory()
    needed, why = estimates.estimate_memory(context)
    limit = "" if memory.limited_by == "physical memory" else f" ({memory.limited_by})"
    message = f"{size(memory.available)} of {size(memory.limit)}{limit} available; training needs about {size(needed)} to start"
    return Answer(message, tuple(_findings(context, memory, needed, why)))


def _findings(context: CheckContext, memory: SystemMemory, needed: float, why: str) -> Iterator[Finding]:
    if memory.available < needed:
        is_possible = memory.limit >= needed
        remedies = [f"close other programs: {size(needed - memory.available)} more needed"] if is_possible else []
        if context.settings.get("cache") in (True, "ram"):
            remedies.append("cache=False, or cache=disk")
        if "workers" in why:
            remedies.append("workers=2, or 0")
        yield finding(
            "fatal" if memory.available < MIN_SHARE * estimates.TORCH_BYTES else "warn",
            f"{size(memory.available)} of memory is available, but training needs about {size(needed)} to start.",
            evidence=[why, f"{size(memory.limit)} in total, limited by {memory.limited_by}"],
            remedies=remedies or ["use a machine with more memory, or give the container more"],
            confidence="likely",
        )
    budget = context.plan.budget.memory if context.plan is not None else None
    if budget is not None and budget > memory.available:
        yield warn(
            f"The plan's budget is {size(budget)}, but only {size(memory.available)} is available now.",
            evidence=[f"{size(memory.limit)} in total, limited by {memory.limited_by}"],
            remedies=["close other programs, or lower memory under [budget]"],
        )


_FULL = RecordedMachine(total=16 * GIB, available=GIB // 5)
_SHORT = RecordedMachine(total=8 * GIB, available=GIB)

CHECK = Check(
    kind="environment",
    run=run,
    cases=lambda: (
        Case("enough memory", mac(), "passed"),
        Case("almost no memory left", mac(machine=_FULL), "fatal"),
        Case("eight workers do not fit", linux(machine=_SHORT, settings={"workers": 8}), "warn"),
        Case("one worker fits", linux(machine=_SHORT, settings={"workers": 1}), "passed"),
    ),
)

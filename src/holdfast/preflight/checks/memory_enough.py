"""Is there memory for a training to begin?

**What it asks.** What can still be had before something must be swapped or killed, by the tightest of physical memory and
the limits of a container, against what a training takes before its first batch: torch itself, loader workers, images that
are cached in memory.

**Why.** Memory that ends is the commonest death of a long run, and on a Mac it comes without an error. What does not fit before
the first batch will not fit after it.

**What to do.** Close other programs; fewer workers; no `cache=ram`. What batches and validation need is measured by the
forecast, not guessed here.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from holdfast.diagnosis.units import size
from holdfast.preflight.case_contexts import GIB, RecordedMachine, linux, mac
from holdfast.preflight.checks import estimates
from holdfast.preflight.checks.check import Answer, Case, Check, finding

if TYPE_CHECKING:
    from collections.abc import Iterator

    from holdfast.machine import SystemMemory
    from holdfast.preflight.checks.check import CheckContext
    from holdfast.schema.verdicts import Finding

ID = "memory-enough"
HOPELESS = 0.4
"""Of what is needed at the least: with less than that not even torch is imported without swapping."""


def run(context: CheckContext) -> Answer:
    memory = context.machine.memory()
    needed, why = estimates.memory(context)
    limit = "" if memory.limited_by == "physical memory" else f" ({memory.limited_by})"
    message = f"{size(memory.available)} of {size(memory.limit)}{limit} can be had; it begins with about {size(needed)}"
    return Answer(message, tuple(_findings(context, memory, needed, why)))


def _findings(context: CheckContext, memory: SystemMemory, needed: float, why: str) -> Iterator[Finding]:
    if memory.available < needed:
        ever = memory.limit >= needed
        remedies = [f"close other programs: {size(needed - memory.available)} more are needed"] if ever else []
        if context.settings.get("cache") in (True, "ram"):
            remedies.append("cache=False, or cache=disk")
        if "workers" in why:
            remedies.append("workers=2, or 0")
        yield finding(
            ID,
            "fatal" if memory.available < HOPELESS * estimates.IMPORTED else "warn",
            f"{size(memory.available)} of memory can be had, and the training begins with about {size(needed)}.",
            evidence=[why, f"{size(memory.limit)} in all, by {memory.limited_by}"],
            remedies=remedies or ["use a machine with more memory, or give the container more"],
            confidence="likely",
        )
    budget = context.plan.budget.memory if context.plan is not None else None
    if budget is not None and budget > memory.available:
        yield finding(
            ID,
            "warn",
            f"The plan's budget is {size(budget)}, and {size(memory.available)} can be had now.",
            evidence=[f"{size(memory.limit)} in all, by {memory.limited_by}"],
            remedies=["close other programs, or lower memory under [budget]"],
        )


_FULL = RecordedMachine(total=16 * GIB, available=GIB // 5)
_SHORT = RecordedMachine(total=8 * GIB, available=GIB)

CHECK = Check(
    id=ID,
    kind="environment",
    run=run,
    page=__doc__ or "",
    cases=(
        Case("a machine with room", mac(), "passed"),
        Case("next to nothing is left", mac(machine=_FULL), "fatal"),
        Case("eight workers do not fit", linux(machine=_SHORT, settings={"workers": 8}), "warn"),
        Case("two do", linux(machine=_SHORT, settings={"workers": 1}), "passed"),
    ),
)

"""The machine has almost no memory left.

**What it means.** Several consecutive measurements found almost no available memory, or swap usage grows fast while
little memory is available. Everything becomes slow, and the system will soon kill the largest process, which is
probably this run.

**Why it happens.** The run needs more memory than the machine has, because of a batch or images that are too large, a
dataset cache, or many `DataLoader` workers. Or another program uses the memory. The finding shows how much memory this
run uses and how much other programs use.

**What to do.** If other programs use the memory, close them. If the run uses it, use fewer workers, disable dataset
caching, or use a smaller batch with more gradient accumulation.

**When it is reported.** Less than 15% of the machine's memory (or of the container's limit) must be available, and one
of these conditions must be met:

- Less than 4% was available in 5 consecutive measurements.
- Swap usage grew by at least 1 GiB within 120 seconds.

**Severity.** It is reported as `warn` if the run itself uses at least 25% of the machine's memory, and as a `note`
otherwise.

**When it is not reported.** Nothing is reported for a single low measurement, or for swap usage while plenty of memory
is available: operating systems move idle pages to swap.

Sources: ultralytics#7471, ultralytics#24065.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from holdfast.diagnosis.hints import hint
from holdfast.diagnosis.remedy_ids import HOST_MEMORY
from holdfast.diagnosis.rule import Case, Rule
from holdfast.schema import events
from holdfast.schema.units import GIB, duration, size
from holdfast.schema.verdicts import Finding
from holdfast.testing.resources import memory_history

if TYPE_CHECKING:
    from collections.abc import Mapping

    from holdfast.diagnosis.aggregators.memory import Memory
    from holdfast.diagnosis.run_state import RunState

LIMITS = {
    "available_part": 0.04,
    "samples": 5,
    "swap_gib": 1.0,
    "swap_seconds": 120.0,
    "swap_available_part": 0.15,
    "ours_part": 0.25,
}


def judge(state: RunState) -> Finding | None:
    memory = state.attempt.memory
    total = state.started.memory_total if state.started is not None else None
    if not total or not memory.samples:
        return None
    limits = state.get_limits("memory-pressure", LIMITS)
    last = memory.samples[-1]
    if last.available >= max(limits["swap_available_part"], limits["available_part"]) * total:
        return None
    signs = [
        sign for sign in (_find_scarcity(memory, total, limits), _find_swap_growth(memory, limits)) if sign is not None
    ]
    if not signs:
        return None
    driver = (memory.points[-1].driver or 0.0) if memory.excludes_driver else 0.0
    own = last.rss + driver
    others = max(0.0, total - last.available - own)
    largest_user = (
        "most of the memory is used by this run"
        if own >= others
        else "most of the memory is used by other programs or the system"
    )
    return Finding(
        severity="warn" if own >= limits["ours_part"] * total else "note",
        message=f"Memory is almost full: only {size(last.available)} of {size(total)} is available, and {largest_user}.",
        evidence=[
            *signs,
            f"this run uses {size(own)} in {last.processes} process{'es' if last.processes != 1 else ''}"
            + (f" ({size(driver)} of it in the device driver)" if driver else ""),
            f"other programs use {size(others)}; {size(last.swap)} is in swap",
        ],
        remedies=[
            *([] if own >= others else ["close other programs: they use more memory than this run"]),
            *(["use fewer DataLoader workers"] if last.processes > 2 else []),
            f"turn off dataset caching{hint(state, 'no-cache')}",
            "use a smaller batch with more gradient accumulation: the effective batch size stays the same",
        ],
    )


def _find_scarcity(memory: Memory, total: int, limits: Mapping[str, float]) -> str | None:
    min_available = limits["available_part"] * total
    low = 0
    for sample in reversed(memory.samples):
        if sample.available >= min_available or low >= limits["samples"]:
            break
        low += 1
    if low < limits["samples"]:
        return None
    return f"less than {size(min_available)} was available in {low} consecutive measurements"


def _find_swap_growth(memory: Memory, limits: Mapping[str, float]) -> str | None:
    last = memory.samples[-1]
    before = last
    for sample in reversed(memory.samples):
        if last.at - sample.at > limits["swap_seconds"]:
            break
        before = sample
    growth = last.swap - before.swap
    if growth < limits["swap_gib"] * GIB:
        return None
    return f"swap usage grew by {size(growth)} within {duration(last.at - before.at)}"


RULE = Rule(
    kind="resources",
    on=(events.Sample,),
    judge=judge,
    limits=LIMITS,
    predicts_kill=True,
    charts=("memory",),
    remedies=HOST_MEMORY,
    cases=lambda: [
        Case("almost no memory is left", memory_history(samples=20, rss=13.5, others=2.0), "warn"),
        Case("other programs use almost all memory", memory_history(samples=20, rss=1.0, others=14.5), "note"),
        Case(
            "swap grows fast while little memory is left",
            memory_history(samples=20, rss=12.0, others=2.5, swap=lambda part: 8.0 * part),
            "warn",
        ),
        Case(
            "the GPU driver of a Mac uses the memory",
            memory_history(samples=20, rss=1.5, others=2.0, driver=12.2),
            "warn",
        ),
        Case("enough memory is left", memory_history(samples=20, rss=10.0, others=2.0), None),
        Case(
            "a single low measurement", memory_history(samples=20, rss=lambda part: 13.8 if part == 0.5 else 3.0), None
        ),
        Case(
            "idle pages go to swap while plenty of memory is left",
            memory_history(samples=20, swap=lambda part: 8.0 * part),
            None,
        ),
        Case("steady swap usage for a long time", memory_history(samples=20, rss=12.0, others=2.5, swap=6.0), None),
    ],
)

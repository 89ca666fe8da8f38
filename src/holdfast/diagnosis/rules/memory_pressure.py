"""The machine has almost no memory left.

**What it means.** For several looks in a row there was next to nothing left, or what is in swap grows fast while little is
left. Everything becomes slow, and soon the system kills the largest process: most likely this training.

**Why it happens.** The training needs more than the machine has: batch and images too large, a dataset cache, many loader
workers. Or another program took the memory: the finding says how much is this training's and how much is others'.

**What to do.** Close other programs if it is theirs; if it is the training's own, fewer workers, no dataset cache, a smaller
batch with more accumulation.

**What it needs.** Samples of memory and the machine's total (or the limit of the container). It stays silent on a single low
look, and on swap that is used while plenty of memory is left: systems move idle pages out. Where the training itself holds
little, it is a note.

Sources: ultralytics#7471, ultralytics#24065.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from holdfast.diagnosis.rule import Case, Rule
from holdfast.diagnosis.units import GIB, duration, size
from holdfast.schema import events
from holdfast.schema.verdicts import Finding
from holdfast.testing.resources import life

if TYPE_CHECKING:
    from collections.abc import Mapping

    from holdfast.diagnosis.aggregators import Memory
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
    limits = state.tuned("memory-pressure", LIMITS)
    last = memory.samples[-1]
    if last.available >= max(limits["swap_available_part"], limits["available_part"]) * total:
        return None
    signs = [sign for sign in (_scarce(memory, total, limits), _swaps(memory, limits)) if sign is not None]
    if not signs:
        return None
    driver = (memory.points[-1].driver or 0.0) if memory.excludes_driver else 0.0
    ours = last.rss + driver
    others = max(0.0, total - last.available - ours)
    most = "most of it is this training's" if ours >= others else "most of it is held by other programs or the system"
    return Finding(
        rule="memory-pressure",
        severity="warn" if ours >= limits["ours_part"] * total else "note",
        message=f"Memory is almost used up: {size(last.available)} of {size(total)} are left, and {most}.",
        evidence=[
            *signs,
            f"this training holds {size(ours)} in {last.processes} process{'es' if last.processes != 1 else ''}"
            + (f" ({size(driver)} of it in the device's driver)" if driver else ""),
            f"others hold {size(others)}; {size(last.swap)} are in swap",
        ],
        remedies=[
            *([] if ours >= others else ["close other programs: they hold more than the training"]),
            *(["use fewer loader workers"] if last.processes > 2 else []),
            "switch off dataset caching (Ultralytics: cache=False)",
            "use a smaller batch with more gradient accumulation: the effective batch stays the same",
        ],
    )


def _scarce(memory: Memory, total: int, limits: Mapping[str, float]) -> str | None:
    least = limits["available_part"] * total
    low = 0
    for sample in reversed(memory.samples):
        if sample.available >= least or low >= limits["samples"]:
            break
        low += 1
    if low < limits["samples"]:
        return None
    return f"less than {size(least)} were left in {low} looks in a row"


def _swaps(memory: Memory, limits: Mapping[str, float]) -> str | None:
    last = memory.samples[-1]
    before = last
    for sample in reversed(memory.samples):
        if last.at - sample.at > limits["swap_seconds"]:
            break
        before = sample
    grown = last.swap - before.swap
    if grown < limits["swap_gib"] * GIB:
        return None
    return f"what is in swap grew by {size(grown)} within {duration(last.at - before.at)}"


RULE = Rule(
    id="memory-pressure",
    kind="resources",
    on=(events.Sample,),
    judge=judge,
    limits=LIMITS,
    page=__doc__ or "",
    cases=[
        Case("almost nothing is left", life(samples=20, rss=13.5, others=2.0), "warn"),
        Case("others hold it all", life(samples=20, rss=1.0, others=14.5), "note"),
        Case(
            "swap grows fast while little is left",
            life(samples=20, rss=12.0, others=2.5, swap=lambda part: 8.0 * part),
            "warn",
        ),
        Case("the driver of a Mac's GPU holds it", life(samples=20, rss=1.5, others=2.0, driver=12.2), "warn"),
        Case("enough is left", life(samples=20, rss=10.0, others=2.0), None),
        Case("one low look", life(samples=20, rss=lambda part: 13.8 if part == 0.5 else 3.0), None),
        Case("idle pages go to swap while plenty is left", life(samples=20, swap=lambda part: 8.0 * part), None),
        Case("swap in use for long, and steady", life(samples=20, rss=12.0, others=2.5, swap=6.0), None),
    ],
)

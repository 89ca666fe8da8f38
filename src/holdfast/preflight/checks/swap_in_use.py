"""Is the machine already swapping?

**What it checks.** Checks how much swap is in use, and what level of memory pressure macOS reports.

**Why.** A machine that swaps before training starts has no memory left for it: in one reported case, the time per epoch rose from 979 s
to 39,322 s. MPS uses main memory, and torch's default memory limit exceeds the physical memory of many Macs.

**What to do.** Close programs that use a lot of memory (a browser, a different training run, a virtual machine), or restart the
machine. A small amount of swap that is never read again is harmless.

Sources: ultralytics#24065, ultralytics#22621.
"""

from __future__ import annotations

from holdfast.preflight.case_contexts import RecordedMachine, linux, mac
from holdfast.preflight.checks.check import Answer, Case, Check, CheckContext, warn
from holdfast.schema.units import GIB, size

MAX_SHARE = 0.25
"""A share of physical memory. Any machine accumulates less than this in a week."""


def run(context: CheckContext) -> Answer:
    memory = context.machine.memory()
    pressed = memory.pressure not in (None, "normal")
    message = "no swap is in use" if not memory.swap_used else f"only {size(memory.swap_used)} of swap is in use"
    if not pressed and memory.swap_used <= MAX_SHARE * memory.total:
        return Answer(f"{message}, memory pressure is normal" if memory.pressure else message)
    evidence = [f"{size(memory.swap_used)} of swap in use, {size(memory.total)} of memory"]
    if memory.pressure:
        evidence.append(f"memory pressure: {memory.pressure}")
    warning = warn(
        f"The machine is already swapping: {size(memory.swap_used)} of swap in use with {size(memory.total)} of memory"
        + (f", and the memory pressure is {memory.pressure}" if pressed else "")
        + ". Training will be many times slower, or will be killed.",
        evidence=evidence,
        remedies=[
            "close programs that use a lot of memory (browser, other training runs, virtual machines)",
            "or restart the machine",
        ],
        confidence="likely",
    )
    return Answer(message, (warning,))


CHECK = Check(
    kind="environment",
    run=run,
    cases=lambda: (
        Case("a Mac without free memory", mac(machine=RecordedMachine(swap=24 * GIB, pressure="critical")), "warn"),
        Case("little swap, but memory pressure", mac(machine=RecordedMachine(swap=GIB, pressure="warning")), "warn"),
        Case(
            "the usual amount of swap on a Mac", mac(machine=RecordedMachine(swap=2 * GIB, pressure="normal")), "passed"
        ),
        Case("no swap", linux(), "passed"),
    ),
)

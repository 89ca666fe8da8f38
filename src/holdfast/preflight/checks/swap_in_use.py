"""Does the machine swap already?

**What it asks.** How much swap is in use, and what macOS says of its memory pressure.

**Why.** A machine that swaps before the training starts has no room for it: in the field an epoch of 979 s became one of
39,322 s. MPS's memory is the machine's own, and torch's default limit lies above what many Macs have.

**What to do.** Close what holds the memory (a browser, another training, a virtual machine), or restart the machine; some swap
that nobody reads again is harmless.

Sources: ultralytics#24065, ultralytics#22621.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from holdfast.diagnosis.units import size
from holdfast.preflight.case_contexts import GIB, RecordedMachine, linux, mac
from holdfast.preflight.checks.check import Answer, Case, Check, finding

if TYPE_CHECKING:
    from holdfast.preflight.checks.check import CheckContext

ID = "swap-in-use"
MUCH = 0.25
"""Of physical memory. Less is what any machine collects in a week."""


def run(context: CheckContext) -> Answer:
    memory = context.machine.memory()
    pressed = memory.pressure not in (None, "normal")
    message = (
        "no swap is in use" if not memory.swap_used else f"{size(memory.swap_used)} of swap in use, which is little"
    )
    if not pressed and memory.swap_used <= MUCH * memory.total:
        return Answer(f"{message}, memory pressure is normal" if memory.pressure else message)
    evidence = [f"{size(memory.swap_used)} of swap in use, {size(memory.total)} of memory"]
    if memory.pressure:
        evidence.append(f"memory pressure: {memory.pressure}")
    made = finding(
        ID,
        "warn",
        f"The machine swaps already: {size(memory.swap_used)} of swap in use beside {size(memory.total)} of memory"
        + (f", and its memory pressure is {memory.pressure}" if pressed else "")
        + ". A training will be many times slower, or killed.",
        evidence=evidence,
        remedies=["close what holds the memory (browser, other trainings, virtual machines)", "or restart the machine"],
        confidence="likely",
    )
    return Answer(message, (made,))


CHECK = Check(
    id=ID,
    kind="environment",
    run=run,
    page=__doc__ or "",
    cases=(
        Case("a starved Mac", mac(machine=RecordedMachine(swap=24 * GIB, pressure="critical")), "warn"),
        Case("little swap, but pressure", mac(machine=RecordedMachine(swap=GIB, pressure="warning")), "warn"),
        Case("what any Mac collects", mac(machine=RecordedMachine(swap=2 * GIB, pressure="normal")), "passed"),
        Case("no swap", linux(), "passed"),
    ),
)

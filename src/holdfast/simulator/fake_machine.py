"""The machine that a drill happens on: the real one, with what the simulated accelerator did to it."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from holdfast.machine import KillCounters, Power, ProcessFacts, SystemMemory, this_machine
from holdfast.schema.events import Evidence
from holdfast.simulator.accelerator.memory_model import SMALL_MACHINE
from holdfast.simulator.paths import KERNEL_LOG, MEMORY_FILE, NAP_FILE, SWAP_FILE
from holdfast.supervisor.supervisor import Deps

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable
    from pathlib import Path

    from holdfast.machine import Awake, Machine
    from holdfast.simulator.drill import MachineFactory


def deps(world: MachineFactory, folder: Path) -> Deps:
    """`folder` is the training's own, where the accelerator leaves what the machine should know."""
    if world == "unified memory":
        return Deps(machine=UnifiedMemory(folder))
    if world == "falls asleep":
        sleeper = Sleeper(folder)
        return Deps(machine=sleeper, clock=lambda: time.time() + sleeper.seconds_asleep())
    return Deps()


class Simulated:
    """The real machine; what is simulated of it is overridden."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._real: Machine = this_machine()

    def memory(self) -> SystemMemory:
        return self._real.memory()

    def pids(self) -> Iterable[int]:
        return self._real.pids()

    def process(self, pid: int) -> ProcessFacts | None:
        return self._real.process(pid)

    def seconds_asleep(self) -> float | None:
        return self._real.seconds_asleep()

    def kill_counters(self) -> KillCounters:
        return self._real.kill_counters()

    def kill_evidence(self, before: KillCounters, pids: Collection[int], since: float) -> list[Evidence]:
        return self._real.kill_evidence(before, pids, since)

    def keep_awake(self) -> Awake:
        return self._real.keep_awake()

    def power(self) -> Power:
        return self._real.power()


class UnifiedMemory(Simulated):
    """A Mac: the driver's memory is the machine's own, and the kernel's log names what it killed."""

    def memory(self) -> SystemMemory:
        held = int(_text(self._folder / MEMORY_FILE) or 0)
        swapped = int(_text(self._folder / SWAP_FILE) or 0)
        return SystemMemory(
            total=SMALL_MACHINE,
            available=max(0, SMALL_MACHINE - held),
            swap_used=swapped,
            swap_in=swapped,
            limit=SMALL_MACHINE,
            limited_by="physical memory",
        )

    def kill_evidence(self, before: KillCounters, pids: Collection[int], since: float) -> list[Evidence]:  # noqa: ARG002 - the seam's signature
        return [
            Evidence("kernel log", line)
            for line in _text(self._folder / KERNEL_LOG).splitlines()
            if any(f"[{pid}]" in line for pid in pids)
        ]


class Sleeper(Simulated):
    """A machine that says how long it slept, as the training's folder has it."""

    def seconds_asleep(self) -> float:
        return float(_text(self._folder / NAP_FILE) or 0)


def _text(path: Path) -> str:
    try:
        return path.read_text()
    except OSError:
        return ""

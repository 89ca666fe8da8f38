"""The machine of a drill: the real one, modified by what the simulated accelerator reports."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any, cast

from holdfast.machine import SystemMemory, this_machine
from holdfast.schema.events import Evidence
from holdfast.simulator.accelerator.memory_model import SMALL_MACHINE
from holdfast.simulator.paths import KERNEL_LOG, MEMORY_FILE, SLEEP_FILE, SWAP_FILE
from holdfast.supervisor.supervisor import Deps

if TYPE_CHECKING:
    from collections.abc import Collection
    from pathlib import Path

    from holdfast.machine import KillCounters, Machine
    from holdfast.simulator.drill import MachineKind


def create_deps(machine: MachineKind, folder: Path) -> Deps:
    """Return the supervisor's dependencies. `folder` is the training's folder, where the accelerator writes its figures."""
    if machine == "unified memory":
        return Deps(machine=cast("Machine", UnifiedMemoryMachine(folder)))
    if machine == "falls asleep":
        sleeping = SleepingMachine(folder)
        return Deps(machine=cast("Machine", sleeping), clock=lambda: time.time() + sleeping.seconds_asleep())
    return Deps()


class SimulatedMachine:
    """The real machine, except for the methods of a subclass."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._real = this_machine()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._real, name)


class UnifiedMemoryMachine(SimulatedMachine):
    """A Mac: the driver uses the machine's memory, and the kernel log names the processes it killed."""

    def memory(self) -> SystemMemory:
        driver_bytes = int(_read_text(self._folder / MEMORY_FILE) or 0)
        swapped = int(_read_text(self._folder / SWAP_FILE) or 0)
        return SystemMemory(
            total=SMALL_MACHINE,
            available=max(0, SMALL_MACHINE - driver_bytes),
            swap_used=swapped,
            swap_in=swapped,
            limit=SMALL_MACHINE,
            limited_by="physical memory",
        )

    def kill_evidence(self, before: KillCounters, pids: Collection[int], since: float) -> list[Evidence]:  # noqa: ARG002 - the interface's signature
        return [
            Evidence("kernel log", line)
            for line in _read_text(self._folder / KERNEL_LOG).splitlines()
            if any(f"[{pid}]" in line for pid in pids)
        ]


class SleepingMachine(SimulatedMachine):
    """A machine that reports the sleep time written in the training's folder."""

    def seconds_asleep(self) -> float:
        return float(_read_text(self._folder / SLEEP_FILE) or 0)


def _read_text(path: Path) -> str:
    try:
        return path.read_text()
    except OSError:
        return ""

"""Any machine, using only psutil: the base class for macOS and the fallback for other systems."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import psutil

from holdfast.machine.base import Awake, KillCounters, ProcessFacts, SystemMemory
from holdfast.machine.keep_awake import CannotKeepAwake
from holdfast.machine.power import Power
from holdfast.schema.events import Evidence

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable


class PsutilMachine:
    def memory(self) -> SystemMemory:
        system = psutil.virtual_memory()
        try:
            swap_used = int(psutil.swap_memory().used)
        except (OSError, RuntimeError):
            swap_used = 0
        total = int(system.total)
        return SystemMemory(total, int(system.available), swap_used, None, total, "physical memory")

    def pids(self) -> Iterable[int]:
        return [int(pid) for pid in psutil.pids()]

    def process(self, pid: int) -> ProcessFacts | None:
        try:
            process = psutil.Process(pid)
            with process.oneshot():
                parent, started = process.ppid(), process.create_time()
                if process.status() == psutil.STATUS_ZOMBIE:
                    return ProcessFacts(pid, parent, started, 0, 0, 0.0, zombie=True)
                try:
                    times = process.cpu_times()
                    resident, cpu = int(process.memory_info().rss), float(times.user + times.system)
                except psutil.AccessDenied:
                    resident, cpu = 0, 0.0
        except (psutil.Error, OSError):
            return None
        return ProcessFacts(pid, parent, started, resident, 0, cpu)

    def seconds_asleep(self) -> float | None:
        return None

    def kill_counters(self) -> KillCounters:
        return KillCounters({}, time.monotonic())

    def kill_evidence(self, before: KillCounters, pids: Collection[int], since: float) -> list[Evidence]:  # noqa: ARG002 - the interface's signature
        return [Evidence("not readable", "Holdfast cannot read a record of kills on this platform")]

    def keep_awake(self) -> Awake:
        return CannotKeepAwake("this is not supported on this platform")

    def power(self) -> Power:
        return Power()

"""macOS: vm_stat, sysctl, the unified log, crash reports, physical footprints and caffeinate.

This module can be imported on any system; commands run through a function that tests replace.
"""

from __future__ import annotations

import ctypes
import math
import os
import time
from pathlib import Path
from typing import TYPE_CHECKING

from holdfast.machine.commands import CommandOutput, run_command
from holdfast.machine.keep_awake import HelperKeepsAwake
from holdfast.machine.macos_text import (
    describe_pressure,
    find_log_evidence,
    find_report_evidence,
    parse_swap_used,
    parse_sysctl_number,
    parse_vm_stat,
)
from holdfast.machine.power import Power, parse_pmset
from holdfast.machine.psutil_machine import PsutilMachine
from holdfast.machine.safely import gather_evidence
from holdfast.schema.events import Evidence
from holdfast.storage.safe_files import expand_user

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable

    from holdfast.machine.base import Awake, KillCounters, ProcessFacts, SystemMemory

_PRESSURE_LEVEL = "kern.memorystatus_vm_pressure_level"
LOG_TIMEOUT_S = 25.0
"""Timeout of `log show`, which is slow. The training has exited by then, and its cause is worth the wait."""
_KILL_LINES = (
    'process == "kernel" AND (eventMessage CONTAINS "memorystatus: killing" OR eventMessage CONTAINS "low swap")'
)
_MAX_REPORTS = 20
_MAX_REPORT_BYTES = 8_000_000


class MacMachine(PsutilMachine):
    def __init__(
        self,
        run_command: Callable[[list[str], float], CommandOutput] = run_command,
        footprint: Callable[[int], int | None] | None = None,
        reports: tuple[Path, ...] | None = None,
    ) -> None:
        self._run_command = run_command
        self._footprint = footprint or footprint_reader()
        folder = Path("Library/Logs/DiagnosticReports")
        self._reports = (expand_user("~") / folder, Path("/") / folder) if reports is None else reports

    def memory(self) -> SystemMemory:
        memory = super().memory()
        vm_stat = parse_vm_stat(self._run_command(["vm_stat"], 1.0).text)
        settings = self._run_command(["sysctl", "vm.swapusage", _PRESSURE_LEVEL], 1.0).text
        swap_used = parse_swap_used(settings)
        return memory._replace(
            available=memory.available if vm_stat is None else vm_stat.available(memory.total),
            swap_used=memory.swap_used if swap_used is None else swap_used,
            swap_in=None if vm_stat is None else vm_stat.bytes("Swapins"),
            pressure=describe_pressure(parse_sysctl_number(settings, _PRESSURE_LEVEL)),
        )

    def process(self, pid: int) -> ProcessFacts | None:
        """Return the facts of a process, with the physical footprint as its memory if that may be read.

        The resident size includes neither GPU allocations in unified memory nor compressed memory, and macOS counts
        both when it kills a process.
        """
        facts = super().process(pid)
        if facts is None or facts.zombie:
            return facts
        footprint = self._footprint(pid)
        return facts if footprint is None else facts._replace(private=footprint)

    def seconds_asleep(self) -> float | None:
        monotonic_raw, uptime_raw = getattr(time, "CLOCK_MONOTONIC_RAW", None), getattr(time, "CLOCK_UPTIME_RAW", None)
        if monotonic_raw is None or uptime_raw is None:
            return None
        try:
            return max(0.0, time.clock_gettime(monotonic_raw) - time.clock_gettime(uptime_raw))
        except OSError:
            return None

    def kill_evidence(self, before: KillCounters, pids: Collection[int], since: float) -> list[Evidence]:  # noqa: ARG002 - macOS keeps no counters
        deadline = time.monotonic() + LOG_TIMEOUT_S
        ours = frozenset(pids)
        # The log first: it takes a second or two, during which the crash reporter can finish its file.
        return gather_evidence(
            [
                ("kernel log", lambda: self._read_log_evidence(ours, since, deadline)),
                ("crash reports", lambda: self._read_report_evidence(ours, since, deadline)),
            ]
        )

    def keep_awake(self) -> Awake:
        command = ["caffeinate", "-i", "-s", "-w", str(os.getpid())]
        return HelperKeepsAwake(command, "caffeinate (on battery, a closed lid still sleeps)", confirms_start=False)

    def power(self) -> Power:
        return parse_pmset(
            self._run_command(["pmset", "-g", "batt"], 1.0).text, self._run_command(["pmset", "-g"], 1.0).text
        )

    def _read_log_evidence(self, pids: frozenset[int], since: float, deadline: float) -> Iterable[Evidence]:
        minutes = min(5, max(1, math.ceil((time.time() - since) / 60)))
        command = ["log", "show", "--style", "compact", "--last", f"{minutes}m", "--predicate", _KILL_LINES]
        output = self._run_command(command, deadline - time.monotonic() - 0.3)
        evidence = find_log_evidence(output.text, pids)
        if output.problem and not any(item.source == "kernel log" for item in evidence):
            evidence.append(Evidence("not readable", f"kernel log: {output.problem}"))
        return evidence

    def _read_report_evidence(self, pids: frozenset[int], since: float, deadline: float) -> Iterable[Evidence]:
        for file in _find_newest_reports(self._reports, since):
            if time.monotonic() > deadline:
                yield Evidence("not readable", "crash reports: not all of them could be read in time")
                return
            with file.open(encoding="utf-8", errors="replace") as text:
                evidence = find_report_evidence(text.read(_MAX_REPORT_BYTES), pids)
            if evidence:
                yield evidence


def _find_newest_reports(folders: Iterable[Path], since: float) -> list[Path]:
    dated: list[tuple[float, Path]] = []
    for folder in folders:
        for file in folder.glob("*.ips"):
            try:
                written = file.stat().st_mtime
            except OSError:
                continue
            if written >= since and os.access(file, os.R_OK):
                dated.append((written, file))
    return [file for _, file in sorted(dated, reverse=True)[:_MAX_REPORTS]]


class _Usage(ctypes.Structure):
    """`rusage_info_v0` of <sys/resource.h>; later versions only add fields."""

    _fields_ = (
        ("uuid", ctypes.c_uint8 * 16),
        *((name, ctypes.c_uint64) for name in ("user", "system", "idle_wakeups", "interrupt_wakeups", "page_ins")),
        *((name, ctypes.c_uint64) for name in ("wired", "resident", "footprint", "started", "exited")),
    )


def footprint_reader() -> Callable[[int], int | None]:
    """Return a reader based on `proc_pid_rusage` of the system library; if that is missing, the reader returns None."""
    try:
        proc_pid_rusage = ctypes.CDLL(None, use_errno=True).proc_pid_rusage
    except (OSError, AttributeError):
        return lambda _: None
    proc_pid_rusage.argtypes = [ctypes.c_int, ctypes.c_int, ctypes.c_void_p]
    proc_pid_rusage.restype = ctypes.c_int

    def footprint(pid: int) -> int | None:
        usage = _Usage()
        if proc_pid_rusage(pid, 0, ctypes.byref(usage)) != 0:
            return None
        return int(usage.footprint)

    return footprint

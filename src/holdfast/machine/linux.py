"""Linux: `/proc`, cgroups of both versions, the kernel log and the journal where they can be read."""

from __future__ import annotations

import os
import shutil
import time
from pathlib import Path
from typing import TYPE_CHECKING

from holdfast.machine.base import CALL_TIMEOUT_S, Awake, KillCounters, ProcessFacts, SystemMemory
from holdfast.machine.cgroups import MemoryGroup, counts, read_counts, find_memory_groups
from holdfast.machine.commands import CommandOutput, run_command
from holdfast.machine.keep_awake import CannotKeepAwake, HelperKeepsAwake, NothingSleeps
from holdfast.machine.kernel_log import (
    LogLine,
    find_daemon_evidence,
    find_kernel_evidence,
    parse_dmesg,
    parse_journal,
    parse_kmsg,
)
from holdfast.machine.power import Power, read_supplies
from holdfast.machine.safely import gather_evidence
from holdfast.schema.events import Evidence

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable

_PAGE = os.sysconf("SC_PAGE_SIZE")
_TICK = os.sysconf("SC_CLK_TCK")
_MACHINE_WIDE = "machine: oom_kill in /proc/vmstat"
_INHIBIT = [
    "systemd-inhibit",
    "--what=sleep:idle",
    "--mode=block",
    "--who=Holdfast",
    "--why=a training run is alive",
    "sh",
    "-c",
    "echo held; cat >/dev/null",
]


class LinuxMachine:
    def __init__(
        self,
        proc: Path = Path("/proc"),
        kernel_messages: Path = Path("/dev/kmsg"),
        run_command: Callable[[list[str], float], CommandOutput] = run_command,
        systemd: Path = Path("/run/systemd/system"),
        sys: Path = Path("/sys"),
    ) -> None:
        self._sys = sys
        self._systemd = systemd
        self._proc = proc
        self._kernel_messages = kernel_messages
        self._run_command = run_command

    def memory(self) -> SystemMemory:
        system = parse_meminfo(self._read("meminfo"))
        total = system.get("MemTotal", 0)
        available = system.get("MemAvailable", system.get("MemFree", 0))
        limit, limited_by = total, "physical memory"
        for group in self._find_groups():
            bound = group.limit()
            if bound is None:
                continue
            if bound < limit:
                limit, limited_by = bound, f"cgroup {group.name}"
            headroom = group.headroom()
            available = available if headroom is None else min(available, headroom)
        swapped_in = counts(self._read("vmstat")).get("pswpin")
        return SystemMemory(
            total=total,
            available=available,
            swap_used=max(0, system.get("SwapTotal", 0) - system.get("SwapFree", 0)),
            swap_in=None if swapped_in is None else swapped_in * _PAGE,
            limit=limit,
            limited_by=limited_by,
        )

    def pids(self) -> Iterable[int]:
        try:
            return [int(name) for name in os.listdir(self._proc) if name.isdigit()]  # noqa: PTH208 - twice as fast as iterdir
        except OSError:
            return []

    def process(self, pid: int) -> ProcessFacts | None:
        folder = f"{self._proc}/{pid}"
        try:
            with open(f"{folder}/stat", "rb") as file:  # noqa: PTH123 - read for every process of every sample
                stat = file.read()
            with open(f"{folder}/statm", "rb") as file:  # noqa: PTH123
                statm = file.read()
            return parse_process(pid, stat, statm)
        except (OSError, ValueError, IndexError):
            return None

    def seconds_asleep(self) -> float | None:
        with_sleep = getattr(time, "CLOCK_BOOTTIME", None)
        if with_sleep is None:
            return None
        try:
            return max(0.0, time.clock_gettime(with_sleep) - time.clock_gettime(time.CLOCK_MONOTONIC))
        except OSError:
            return None

    def kill_counters(self) -> KillCounters:
        found: dict[str, int] = {}
        for group in self._find_groups():
            for kind, value in (("kills", group.kills()), ("limit hits", group.limit_hits())):
                if value is not None:
                    found[_make_key(group, kind)] = value
        machine_wide = read_counts(self._proc / "vmstat").get("oom_kill")
        if machine_wide is not None:
            found[_MACHINE_WIDE] = machine_wide
        return KillCounters(found, time.monotonic())

    def kill_evidence(self, before: KillCounters, pids: Collection[int], since: float) -> list[Evidence]:
        deadline = time.monotonic() + CALL_TIMEOUT_S * 0.9
        ours = frozenset(pids)
        return gather_evidence(
            [
                ("cgroups", lambda: self._compare_counters(before)),
                ("kernel log", lambda: self._read_kernel_evidence(before, ours, since, deadline)),
                ("journal", lambda: self._read_daemon_evidence(ours, since, deadline)),
            ]
        )

    def keep_awake(self) -> Awake:
        if not self._systemd.is_dir():  # as sd_booted(3) asks
            return NothingSleeps("systemd, which puts machines to sleep, does not run here")
        if shutil.which(_INHIBIT[0]) is None:
            return CannotKeepAwake("systemd-inhibit is not installed")
        return HelperKeepsAwake(_INHIBIT, "systemd-inhibit (sleep and idle)", confirms_start=True)

    def power(self) -> Power:
        return read_supplies(self._sys / "class/power_supply", self._sys / "firmware/acpi/platform_profile")

    def _read(self, name: str) -> str:
        try:
            return (self._proc / name).read_text()
        except OSError:
            return ""

    def _find_groups(self) -> list[MemoryGroup]:
        return find_memory_groups(self._read("self/cgroup"), self._read("self/mountinfo"))

    def _compare_counters(self, before: KillCounters) -> Iterable[Evidence]:
        now = self.kill_counters().counts
        told: set[int] = set()
        for group in self._find_groups():
            key = _make_key(group, "kills")
            rise = now.get(key, 0) - before.counts.get(key, now.get(key, 0))
            # In version 2 every group above counts the same kill again: the lowest one says it all.
            if rise > 0 and group.version not in told:
                told.add(group.version)
                yield Evidence(
                    "cgroup" if group.own else "cgroup above",
                    f"oom_kill of cgroup {group.name} rose by {rise}: the kernel killed in it for lack of memory",
                )
            key = _make_key(group, "limit hits")
            hits = now.get(key, 0) - before.counts.get(key, now.get(key, 0))
            if hits > 0 and group.own:
                yield Evidence("cgroup limit", f"cgroup {group.name} ran into its memory limit {hits} times")
        rise = now.get(_MACHINE_WIDE, 0) - before.counts.get(_MACHINE_WIDE, now.get(_MACHINE_WIDE, 0))
        if rise > 0:
            yield Evidence("machine counter", f"oom_kill in /proc/vmstat rose by {rise}")

    def _read_kernel_evidence(
        self, before: KillCounters, pids: frozenset[int], since: float, deadline: float
    ) -> Iterable[Evidence]:
        lines, problem = self._read_kernel_lines(deadline)
        if problem is None:
            return find_kernel_evidence(lines, pids, before.monotonic, time.monotonic())
        # Members of the group adm or systemd-journal may read through the journal what dmesg refuses them.
        answer = self._read_journal(["-k"], since, deadline)
        if answer.text.strip():
            return find_kernel_evidence(parse_journal(answer.text), pids, since, time.time())
        return [Evidence("not readable", f"kernel log: {problem}")]

    def _read_kernel_lines(self, deadline: float) -> tuple[list[LogLine], str | None]:
        text = read_kernel_messages(self._kernel_messages, min(deadline, time.monotonic() + 1.0))
        if text is not None:
            return parse_kmsg(text), None
        answer = self._run_command(["dmesg"], min(1.0, deadline - time.monotonic()))
        return parse_dmesg(answer.text), answer.problem

    def _read_daemon_evidence(self, pids: frozenset[int], since: float, deadline: float) -> Iterable[Evidence]:
        answer = self._read_journal(["-t", "earlyoom", "-t", "systemd-oomd"], since, deadline)
        own = [group.name for group in self._find_groups() if group.own]
        found = find_daemon_evidence(parse_journal(answer.text), pids, own, since)
        if answer.problem and not found:
            return [Evidence("not readable", f"journal: {answer.problem}")]
        return found

    def _read_journal(self, what: list[str], since: float, deadline: float) -> CommandOutput:
        command = ["journalctl", *what, "--since", f"@{int(since) - 1}", "-o", "short-unix", "-q", "--no-pager"]
        return self._run_command([*command, "-n", "2000"], min(1.0, deadline - time.monotonic()))


def _make_key(group: MemoryGroup, kind: str) -> str:
    return f"v{group.version} {group.name}: {kind}"


def parse_meminfo(text: str) -> dict[str, int]:
    """Bytes by name."""
    found: dict[str, int] = {}
    for line in text.splitlines():
        name, _, rest = line.partition(":")
        fields = rest.split()
        if fields and fields[0].isdigit():
            found[name] = int(fields[0]) * (1024 if fields[1:] == ["kB"] else 1)
    return found


def parse_process(pid: int, stat: bytes, statm: bytes) -> ProcessFacts:
    """`/proc/<pid>/stat` and `statm`. A process may name itself anything, so fields are counted from the last bracket."""
    fields = stat[stat.rindex(b")") + 2 :].split()
    pages = statm.split()
    resident, shared = int(pages[1]), int(pages[2])
    return ProcessFacts(
        pid=pid,
        parent=int(fields[1]),
        started=int(fields[19]) / _TICK,
        private=max(0, resident - shared) * _PAGE,
        shared=shared * _PAGE,
        cpu=(int(fields[11]) + int(fields[12])) / _TICK,
        zombie=fields[0] in (b"Z", b"X"),
    )


def read_kernel_messages(device: Path, deadline: float) -> str | None:
    """All that the kernel's ring buffer holds, or None where it may not be read."""
    try:
        handle = os.open(device, os.O_RDONLY | os.O_NONBLOCK)
    except OSError:
        return None
    records: list[bytes] = []
    try:
        while time.monotonic() < deadline:
            try:
                record = os.read(handle, 8192)
            except BrokenPipeError:  # this record was overwritten while we read: the next read goes on after it
                continue
            if not record:
                break
            records.append(record)
    except BlockingIOError:
        pass  # the end of what there is
    except OSError:
        return None
    finally:
        os.close(handle)
    return b"".join(records).decode("utf-8", "replace")

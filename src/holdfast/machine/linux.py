"""Linux: `/proc`, cgroups of both versions, and the kernel log and the journal if they can be read."""

from __future__ import annotations

import os
import shutil
import time
from pathlib import Path
from typing import TYPE_CHECKING

from holdfast.machine.base import CALL_TIMEOUT_S, Awake, KillCounters, ProcessFacts, SystemMemory
from holdfast.machine.cgroups import MemoryGroup, find_memory_groups, parse_counts, read_counts
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
    "--why=a training run is active",
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
            group_limit = group.limit()
            if group_limit is None:
                continue
            if group_limit < limit:
                limit, limited_by = group_limit, f"cgroup {group.name}"
            headroom = group.headroom()
            available = available if headroom is None else min(available, headroom)
        swapped_in = parse_counts(self._read("vmstat")).get("pswpin")
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
        boottime = getattr(time, "CLOCK_BOOTTIME", None)
        if boottime is None:
            return None
        try:
            return max(0.0, time.clock_gettime(boottime) - time.clock_gettime(time.CLOCK_MONOTONIC))
        except OSError:
            return None

    def kill_counters(self) -> KillCounters:
        counts: dict[str, int] = {}
        for group in self._find_groups():
            for kind, value in (("kills", group.kills()), ("limit hits", group.limit_hits())):
                if value is not None:
                    counts[_make_key(group, kind)] = value
        machine_wide = read_counts(self._proc / "vmstat").get("oom_kill")
        if machine_wide is not None:
            counts[_MACHINE_WIDE] = machine_wide
        return KillCounters(counts, time.monotonic())

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
        if not self._systemd.is_dir():  # the same check as sd_booted(3)
            return NothingSleeps("systemd, which would suspend the machine, is not running here")
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
        reported: set[int] = set()
        for group in self._find_groups():
            key = _make_key(group, "kills")
            increase = now.get(key, 0) - before.counts.get(key, now.get(key, 0))
            # In version 2 every parent group counts the same kill again, so the lowest group is enough.
            if increase > 0 and group.version not in reported:
                reported.add(group.version)
                yield Evidence(
                    "cgroup" if group.own else "cgroup above",
                    f"oom_kill of cgroup {group.name} increased by {increase}: "
                    "the kernel killed in it for lack of memory",
                )
            key = _make_key(group, "limit hits")
            hits = now.get(key, 0) - before.counts.get(key, now.get(key, 0))
            if hits > 0 and group.own:
                yield Evidence("cgroup limit", f"cgroup {group.name} hit its memory limit {hits} times")
        increase = now.get(_MACHINE_WIDE, 0) - before.counts.get(_MACHINE_WIDE, now.get(_MACHINE_WIDE, 0))
        if increase > 0:
            yield Evidence("machine counter", f"oom_kill in /proc/vmstat increased by {increase}")

    def _read_kernel_evidence(
        self, before: KillCounters, pids: frozenset[int], since: float, deadline: float
    ) -> Iterable[Evidence]:
        lines, problem = self._read_kernel_lines(deadline)
        if problem is None:
            return find_kernel_evidence(lines, pids, before.monotonic, time.monotonic())
        # Members of the group adm or systemd-journal can read the kernel log through the journal if dmesg is forbidden.
        output = self._read_journal(["-k"], since, deadline)
        if output.text.strip():
            return find_kernel_evidence(parse_journal(output.text), pids, since, time.time())
        return [Evidence("not readable", f"kernel log: {problem}")]

    def _read_kernel_lines(self, deadline: float) -> tuple[list[LogLine], str | None]:
        text = read_kernel_messages(self._kernel_messages, min(deadline, time.monotonic() + 1.0))
        if text is not None:
            return parse_kmsg(text), None
        output = self._run_command(["dmesg"], min(1.0, deadline - time.monotonic()))
        return parse_dmesg(output.text), output.problem

    def _read_daemon_evidence(self, pids: frozenset[int], since: float, deadline: float) -> Iterable[Evidence]:
        output = self._read_journal(["-t", "earlyoom", "-t", "systemd-oomd"], since, deadline)
        own_groups = [group.name for group in self._find_groups() if group.own]
        evidence = find_daemon_evidence(parse_journal(output.text), pids, own_groups, since)
        if output.problem and not evidence:
            return [Evidence("not readable", f"journal: {output.problem}")]
        return evidence

    def _read_journal(self, filters: list[str], since: float, deadline: float) -> CommandOutput:
        command = ["journalctl", *filters, "--since", f"@{int(since) - 1}", "-o", "short-unix", "-q", "--no-pager"]
        return self._run_command([*command, "-n", "2000"], min(1.0, deadline - time.monotonic()))


def _make_key(group: MemoryGroup, kind: str) -> str:
    return f"v{group.version} {group.name}: {kind}"


def parse_meminfo(text: str) -> dict[str, int]:
    """Return bytes by name."""
    sizes: dict[str, int] = {}
    for line in text.splitlines():
        name, _, rest = line.partition(":")
        fields = rest.split()
        if fields and fields[0].isdigit():
            sizes[name] = int(fields[0]) * (1024 if fields[1:] == ["kB"] else 1)
    return sizes


def parse_process(pid: int, stat: bytes, statm: bytes) -> ProcessFacts:
    """Parse `/proc/<pid>/stat` and `statm`. A process name may contain anything, so count from the last parenthesis."""
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
    """Return the contents of the kernel's ring buffer, or None if it may not be read."""
    try:
        handle = os.open(device, os.O_RDONLY | os.O_NONBLOCK)
    except OSError:
        return None
    records: list[bytes] = []
    try:
        while time.monotonic() < deadline:
            try:
                record = os.read(handle, 8192)
            except BrokenPipeError:  # this record was overwritten during the read: the next read continues after it
                continue
            if not record:
                break
            records.append(record)
    except BlockingIOError:
        pass  # no more records
    except OSError:
        return None
    finally:
        os.close(handle)
    return b"".join(records).decode("utf-8", "replace")

"""Parsers for macOS command output and reports. Text in, values out, so they can be tested anywhere."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Any, NamedTuple

from holdfast.schema.events import Evidence

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable

MAX_LINES = 12
_PRESSURE = {1: "normal", 2: "warning", 4: "critical"}
_UNITS = {"B": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30, "T": 1 << 40}


class VmStat(NamedTuple):
    page: int
    pages: dict[str, int]

    def bytes(self, name: str) -> int:
        return self.pages.get(name, 0) * self.page

    def available(self, total: int) -> int:
        """Return the total minus what Activity Monitor calls used: app memory, wired and compressed.

        Inactive pages of programs do not count as available: to free them, the machine must compress or swap.
        """
        used = self.bytes("Anonymous pages") - self.bytes("Pages purgeable")
        used += self.bytes("Pages wired down") + self.bytes("Pages occupied by compressor")
        return max(0, total - used)


def parse_vm_stat(text: str) -> VmStat | None:
    page = re.search(r"page size of (\d+) bytes", text)
    if page is None:
        return None
    counted = re.findall(r'^"?([^":\n]+)"?:\s+(\d+)\.?\s*$', text, re.MULTILINE)
    return VmStat(int(page[1]), {name: int(count) for name, count in counted})


def parse_swap_used(text: str) -> int | None:
    """Parse `vm.swapusage: total = 4096.00M  used = 2743.50M  free = 1352.50M  (encrypted)`."""
    found = re.search(r"used = ([\d.]+)([BKMGT])", text)
    return None if found is None else int(float(found[1]) * _UNITS[found[2]])


def parse_sysctl_number(text: str, name: str) -> int | None:
    found = re.search(rf"^{re.escape(name)}: (\d+)\s*$", text, re.MULTILINE)
    return None if found is None else int(found[1])


def describe_pressure(level: int | None) -> str | None:
    return None if level is None else _PRESSURE.get(level, f"level {level}")


_KILLS = (
    re.compile(r"memorystatus: killing largest compressed process (?P<name>.+?) \[(?P<pid>\d+)\]"),
    re.compile(r"memorystatus: killing\S* (?:process )?pid (?P<pid>\d+) \[(?P<name>[^\]]*)\]"),
    re.compile(r"low swap: killing (?:largest compressed process with )?pid (?P<pid>\d+) \((?P<name>[^)]*)\)"),
    re.compile(r"low swap: (?:suspending|throttling) pid (?P<pid>\d+) \((?P<name>[^)]*)\)"),
)
_CONTEXT = re.compile(r"low swap: (?:failed to create swapfile|triggering no paging space action|unable to find)")
_ROUTINE = re.compile(r"killing_idle_process")
"""A healthy Mac kills idle daemons all the time."""
_MESSAGE = re.compile(r"(?:memorystatus|low swap): .*")


def find_log_evidence(text: str, pids: Collection[int]) -> list[Evidence]:
    """Find kill evidence in lines of `log show`.

    Messages that name no process (swap is full) are returned once each.
    """
    ours: list[Evidence] = []
    others: list[Evidence] = []
    context: dict[str, Evidence] = {}
    for line in text.splitlines():
        match = _MESSAGE.search(line)
        if match is None:
            continue
        message = match[0].strip()
        kill = next((found for pattern in _KILLS if (found := pattern.search(message))), None)
        if kill and int(kill["pid"]) in pids:
            ours.append(Evidence("kernel log", line.strip()))
        elif kill and not _ROUTINE.search(message):
            others.append(Evidence("kernel log, other", line.strip()))
        elif kill is None and _CONTEXT.search(message):
            context.setdefault(message, Evidence("kernel log, other", line.strip()))
    return ours[:MAX_LINES] + others[-3:] + list(context.values())[:3]


def find_report_evidence(text: str, pids: Collection[int]) -> Evidence | None:
    """Parse a report of DiagnosticReports (.ips): one JSON line with its type, then the JSON body.

    Return None if it is not about one of these processes.
    """
    head, _, body = text.partition("\n")
    try:
        kind, report = str(json.loads(head).get("bug_type")), json.loads(body)
    except (ValueError, AttributeError):
        return None
    if not isinstance(report, dict):
        return None
    if kind == "298":
        return _parse_jetsam_report(report, pids)
    return _parse_crash_report(report) if report.get("pid") in pids else None


def _parse_jetsam_report(report: dict[str, Any], pids: Collection[int]) -> Evidence | None:
    page = int(_as_dict(report.get("memoryStatus")).get("pageSize", 16384))
    for process in _as_dicts(report.get("processes")):
        reason = process.get("reason")
        if reason and process.get("pid") in pids:
            size = int(process.get("rpages", 0)) * page / (1 << 20)
            return Evidence(
                "jetsam report",
                f"{process.get('name')} [{process['pid']}] was killed by the kernel: {reason}, {size:.0f} MB resident; "
                f"largest process: {report.get('largestProcess')}",
            )
    return None


def _parse_crash_report(report: dict[str, Any]) -> Evidence:
    exception, termination = _as_dict(report.get("exception")), _as_dict(report.get("termination"))
    parts = [f"{report.get('procName')} [{report.get('pid')}]"]
    if exception:
        subtype = f", {exception['subtype']}" if exception.get("subtype") else ""
        parts.append(f"{exception.get('type')} ({exception.get('signal')}){subtype}")
    if termination:
        by = f" by {termination['byProc']}" if termination.get("byProc") else ""
        parts.append(
            f"termination: {termination.get('namespace')} {termination.get('code')} "
            f"{termination.get('indicator', '')}{by}".rstrip()
        )
    notes = [note for texts in _as_dict(report.get("asi")).values() if isinstance(texts, list) for note in texts]
    parts.extend(str(note) for note in notes[:3])
    stack = list(_format_stack(report))
    if stack:
        parts.append("stack: " + " < ".join(stack))
    runtimes = _find_openmp_runtimes(report)
    if len(runtimes) > 1:
        parts.append(f"{len(runtimes)} OpenMP runtimes were loaded: " + ", ".join(runtimes))
    return Evidence("crash report", "; ".join(parts))


def _format_stack(report: dict[str, Any]) -> Iterable[str]:
    threads, images = _as_dicts(report.get("threads")), _as_dicts(report.get("usedImages"))
    faulting = report.get("faultingThread")
    if not isinstance(faulting, int) or not 0 <= faulting < len(threads):
        return
    for frame in _as_dicts(threads[faulting].get("frames"))[:6]:
        index = frame.get("imageIndex")
        image = images[index].get("name", "?") if isinstance(index, int) and 0 <= index < len(images) else "?"
        yield f"{image}: {frame.get('symbol', '?')}"


def _find_openmp_runtimes(report: dict[str, Any]) -> list[str]:
    images = _as_dicts(report.get("usedImages"))
    return sorted({str(i.get("path")) for i in images if re.match(r"lib(?:omp|iomp5|gomp)\b", str(i.get("name")))})


def _as_dict(value: object) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def _as_dicts(value: object) -> list[dict[str, Any]]:
    return [_as_dict(item) for item in value] if isinstance(value, list) else []

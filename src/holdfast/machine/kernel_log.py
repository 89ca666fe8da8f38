"""The lines of the Linux kernel log and the journal that report kills and crashes. Text in, evidence out."""

from __future__ import annotations

import re
from functools import cache
from typing import TYPE_CHECKING, NamedTuple

from holdfast.frameworks import all_frameworks
from holdfast.schema.events import Evidence

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable

MAX_LINES = 12
"""Of repeated kills, the first dozen lines are enough."""
NEAR_THE_END = 10.0
CLOCK_SLACK = 5.0
"""The kernel's timestamps drift from the monotonic clock by seconds over days."""


class LogLine(NamedTuple):
    at: float
    text: str


MAX_LINE = 2000
"""Characters of a line that are searched. Bounded, since every user can write to the journal."""
_OUT_OF_MEMORY = re.compile(
    r"(?:[Oo]ut of memory.*)?\bKill(?:ed)? process (?P<pid>\d+)\b"
    r"|oom-kill:constraint=.*\bpid=(?P<pid2>\d+)"
    r"|oom_reaper: reaped process (?P<pid3>\d+)"
)
_CRASH = re.compile(
    r"(?:traps: )?(?P<name>[^\[\]]+)\[(?P<pid>\d+)\]:? (?:segfault at|general protection|trap |bad frame|unhandled signal)"
)
_TRAINING_PROCESSES = ("python", "pt_main_thread", "pt_data_", "pt_autograd", "torchrun")
_EARLYOOM = re.compile(r"(?:sending SIG(?:TERM|KILL) to|[Kk]illing) process (?P<pid>\d+)\b")
_OOMD = re.compile(r"^(?:Killed|Marked) (?P<group>/\S+) (?:for killing )?due to ")


@cache
def _training_pattern() -> re.Pattern[str]:
    """Return the pattern of a line about a process or thread that may be part of a training, by its name."""
    programs = [program for framework in all_frameworks() for program in framework.programs]
    return re.compile(rf"^(?:traps: )?(?:{'|'.join(map(re.escape, [*_TRAINING_PROCESSES, *programs]))})")


def parse_kmsg(text: str) -> list[LogLine]:
    """Parse records of /dev/kmsg: `6,339,5140900,-;text`, with microseconds in the third field."""
    lines = []
    for record in text.splitlines():
        head, separator, message = record.partition(";")
        fields = head.split(",")
        if separator and len(fields) >= 3 and fields[2].isdigit():
            lines.append(LogLine(int(fields[2]) / 1e6, message[:MAX_LINE]))
    return lines


def parse_dmesg(text: str) -> list[LogLine]:
    """Parse lines of `dmesg`: `[  518.050606] text`."""
    matches = (re.match(r"(?:<\d+>)?\[\s*(\d+\.\d+)\]\s?(.*)", line) for line in text.splitlines())
    return [LogLine(float(m[1]), m[2][:MAX_LINE]) for m in matches if m]


def parse_journal(text: str) -> list[LogLine]:
    """Parse lines of `journalctl -o short-unix`: `1700000000.123456 host name[pid]: text`."""
    matches = (re.match(r"(\d{9,}\.\d+) \S+ [^:]+?: (.*)", line) for line in text.splitlines())
    return [LogLine(float(m[1]), m[2][:MAX_LINE]) for m in matches if m]


def find_kernel_evidence(lines: Iterable[LogLine], pids: Collection[int], since: float, until: float) -> list[Evidence]:
    ours: list[Evidence] = []
    others: list[Evidence] = []
    for line in lines:
        if line.at < since - CLOCK_SLACK:
            continue
        killed = _OUT_OF_MEMORY.search(line.text)
        crashed = None if killed else _CRASH.search(line.text)
        if killed:
            pid = int(killed["pid"] or killed["pid2"] or killed["pid3"])
            if pid in pids:
                ours.append(Evidence("kernel log", line.text))
            elif not killed["pid3"]:
                others.append(Evidence("kernel log, other", line.text))
        elif crashed and int(crashed["pid"]) in pids:
            ours.append(Evidence("kernel log", line.text))
        elif crashed and _training_pattern().match(line.text) and line.at >= until - NEAR_THE_END - CLOCK_SLACK:
            ours.append(Evidence("kernel log, thread", line.text))
    return ours[:MAX_LINES] + others[-3:]


def find_daemon_evidence(
    lines: Iterable[LogLine], pids: Collection[int], own_groups: Collection[str], since: float
) -> list[Evidence]:
    """Find kills by earlyoom (names a process) and systemd-oomd (names a cgroup and kills everything in it)."""
    ours: list[Evidence] = []
    others: list[Evidence] = []
    for line in lines:
        if line.at < since - CLOCK_SLACK:
            continue
        by_pid, by_group = _EARLYOOM.search(line.text), _OOMD.search(line.text)
        if by_pid:
            is_ours = int(by_pid["pid"]) in pids
        elif by_group:
            group = by_group["group"].rstrip("/")
            is_ours = any(own == group or own.startswith(group + "/") for own in own_groups)
        else:
            continue
        (ours if is_ours else others).append(Evidence("journal" if is_ours else "journal, other", line.text))
    return ours[:MAX_LINES] + others[-3:]

"""The seam: what the rest of Holdfast may ask of the machine that it runs on.

No call raises, and each is bounded in time (`CALL_TIMEOUT_S`; evidence of a kill on macOS may take longer). What could not be looked at is said as Evidence of the
source "not readable": no evidence and no access to evidence are two different facts.

Sources of kill evidence, for rules to match on:

    cgroup               our own cgroup counted a kill by the kernel for lack of memory
    cgroup above         a cgroup above ours did; the victim may have been another's process
    cgroup limit         our cgroup ran into its memory limit (so many times)
    machine counter      the machine-wide count of such kills rose
    kernel log           a line of the kernel's that names one of our processes
    kernel log, thread   a crash line that names a thread of a Python near the end; threads' ids are not known to us
    kernel log, other    a memory kill of somebody else's process in the same time
    journal              earlyoom or systemd-oomd killed one of ours
    journal, other       the same, of somebody else's
    crash report         macOS wrote a crash report for one of ours
    jetsam report        macOS wrote a report of a memory kill of one of ours
    not readable         what could not be looked at, and why
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple, Protocol

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable

    from holdfast.machine.power import Power
    from holdfast.schema.events import Evidence

CALL_TIMEOUT_S = 3.0
"""Seconds that any one call may take."""


class SystemMemory(NamedTuple):
    total: int
    """Physical memory."""
    available: int
    """What can still be had before something must be swapped, compressed or killed; the tightest limit counts."""
    swap_used: int
    swap_in: int | None
    """Bytes swapped in since the machine started."""
    limit: int
    """The tightest of physical memory and the limits that this process runs under."""
    limited_by: str
    pressure: str | None = None
    """"normal", "warning" or "critical", where the machine says so."""


class ProcessFacts(NamedTuple):
    pid: int
    parent: int
    started: float
    """With the pid, what tells a process from a later one of the same number."""
    private: int
    """Bytes that are this process's alone, as far as can be told cheaply."""
    shared: int
    """Bytes that it may share with its relatives (libraries, shared memory)."""
    cpu: float
    zombie: bool = False


class KillCounters(NamedTuple):
    """How often the machine had killed for memory when an attempt began."""

    counts: dict[str, int]
    monotonic: float
    """Kernel logs carry this clock."""


class Awake(Protocol):
    """Keeps the machine awake between start and stop. It can never outlive this process, however that ends."""

    def start(self) -> str:
        """Begin; the sentence that came of it, for the record."""
        ...

    def stop(self) -> None: ...

    def __enter__(self) -> str: ...

    def __exit__(self, *exc: object) -> None: ...


class Machine(Protocol):
    def memory(self) -> SystemMemory: ...

    def pids(self) -> Iterable[int]: ...

    def process(self, pid: int) -> ProcessFacts | None:
        """None when there is no such process, or it is not ours to look at."""
        ...

    def seconds_asleep(self) -> float | None:
        """Exact time asleep since the machine started; None where no clock tells."""
        ...

    def kill_counters(self) -> KillCounters: ...

    def kill_evidence(self, before: KillCounters, pids: Collection[int], since: float) -> list[Evidence]:
        """What the machine knows of the end of these processes. `since` is the wall clock of the attempt's start."""
        ...

    def keep_awake(self) -> Awake: ...

    def power(self) -> Power: ...

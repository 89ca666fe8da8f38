"""The interface to the machine that Holdfast runs on.

No call raises, and each is bounded in time (`CALL_TIMEOUT_S`; evidence of a kill on macOS may take longer). What could
not be inspected is reported as Evidence with the source "not readable": no evidence and no access to evidence are
different facts.

Sources of kill evidence, for rules to match on:

    cgroup               Holdfast's own cgroup counted an out-of-memory kill by the kernel
    cgroup above         a parent cgroup did; the victim may have been an unrelated process
    cgroup limit         Holdfast's cgroup hit its memory limit (this many times)
    machine counter      the machine-wide count of out-of-memory kills increased
    kernel log           a line of the kernel that names a process of the attempt
    kernel log, thread   a crash line near the end that names a thread of a Python; thread ids are not known to Holdfast
    kernel log, other    an out-of-memory kill of an unrelated process in the same period
    journal              earlyoom or systemd-oomd killed a process of the attempt
    journal, other       the same for an unrelated process
    crash report         macOS wrote a crash report for a process of the attempt
    jetsam report        macOS wrote a report of a memory kill of a process of the attempt
    not readable         what could not be inspected, and why
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple, Protocol

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable

    from holdfast.machine.power import Power
    from holdfast.schema.events import Evidence

CALL_TIMEOUT_S = 3.0
"""Maximum time of a single call."""


class SystemMemory(NamedTuple):
    total: int
    """Physical memory."""
    available: int
    """Memory that is free before something must be swapped, compressed or killed; the tightest limit counts."""
    swap_used: int
    swap_in: int | None
    """Bytes swapped in since boot."""
    limit: int
    """The minimum of physical memory and the limits of this process."""
    limited_by: str
    pressure: str | None = None
    """"normal", "warning" or "critical", if the machine reports it."""


class ProcessFacts(NamedTuple):
    pid: int
    parent: int
    started: float
    """Together with the pid, distinguishes a process from a later one with the same pid."""
    private: int
    """Bytes that only this process uses, as far as that is cheap to determine."""
    shared: int
    """Bytes that it may share with related processes (libraries, shared memory)."""
    cpu: float
    zombie: bool = False


class KillCounters(NamedTuple):
    """The counts of out-of-memory kills at the start of an attempt."""

    counts: dict[str, int]
    monotonic: float
    """Kernel logs use this clock."""


class AwakeResult(NamedTuple):
    kept: bool
    """False if the machine may go to sleep during the run."""
    message: str


class Awake(Protocol):
    """Keeps the machine awake between start and stop.

    It never outlives this process, no matter how the process exits.
    """

    def start(self) -> AwakeResult:
        """Start; return the result, for the record."""
        ...

    def stop(self) -> None: ...

    def __enter__(self) -> AwakeResult: ...

    def __exit__(self, *exc: object) -> None: ...


class Machine(Protocol):
    def memory(self) -> SystemMemory: ...

    def pids(self) -> Iterable[int]: ...

    def process(self, pid: int) -> ProcessFacts | None:
        """Return the facts of a process; None if it does not exist or may not be inspected."""
        ...

    def seconds_asleep(self) -> float | None:
        """Return the exact time asleep since boot; None if no clock measures it."""
        ...

    def kill_counters(self) -> KillCounters: ...

    def kill_evidence(self, before: KillCounters, pids: Collection[int], since: float) -> list[Evidence]:
        """Return what the machine recorded about the exit of these processes.

        `since` is the wall time of the attempt's start.
        """
        ...

    def keep_awake(self) -> Awake: ...

    def power(self) -> Power: ...

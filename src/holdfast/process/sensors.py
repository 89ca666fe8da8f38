"""Resource samples of an attempt, and detection of system sleep."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from holdfast.process.process_tree import ProcessTree
from holdfast.schema.events import Sample, Slept

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from pathlib import Path

    from holdfast.machine import Machine

EXACT_SLEEP = 1.0
"""Minimum seconds of sleep for an event, if the machine has a clock that measures sleep."""
GUESSED_SLEEP = 30.0
"""Seconds that the wall clock must gain on the monotonic clock between two checks to count as sleep, if no clock
measures sleep. A time server steps the clock of a running machine by less; a step back, or a slow drift, is never
sleep."""


class Sensors:
    """Samples one attempt. Create one per attempt: it remembers which processes belong to the attempt."""

    def __init__(
        self, machine: Machine, pid_source: Callable[[], Iterable[int]], run_dir: Path, clock: Callable[[], float]
    ) -> None:
        self._machine = machine
        self._pid_source = pid_source
        self._run_dir = run_dir
        self._clock = clock
        self._tree = ProcessTree(machine)

    @property
    def pids(self) -> frozenset[int]:
        """The pids of all processes seen in this attempt, to match kill evidence against."""
        return frozenset(self._tree.all_pids).union(self._pid_source())

    def sample(self) -> Sample:
        """Return a sample of the attempt's resources.

        Memory is the sum of the private parts plus the largest shared part: related processes mostly share the same
        libraries and batches. Pages that a forked worker has not yet written count again for each worker. The exact
        figure (PSS) makes the kernel walk all page tables, 11 ms per GB, while the training waits.
        """
        alive = self._tree.update(self._pid_source())
        memory = self._machine.memory()
        return Sample(
            at=self._clock(),
            rss=sum(facts.private for facts in alive) + max((facts.shared for facts in alive), default=0),
            processes=len(alive),
            available=memory.available,
            swap=memory.swap_used,
            swap_in=memory.swap_in,
            disk_free=free_disk(self._run_dir),
            load=_read_load(),
            cpu=round(self._tree.cpu, 2),
        )


def free_disk(folder: Path) -> int:
    """Return the free bytes on the folder's disk; if the folder does not exist, of its nearest existing parent."""
    for path in (folder, *folder.absolute().parents):
        try:
            disk = os.statvfs(path)
        except OSError:
            continue
        return disk.f_bavail * disk.f_frsize
    return 0


def _read_load() -> float | None:
    try:
        return round(os.getloadavg()[0], 2)
    except OSError:
        return None


class ClockWatch:
    """Distinguishes system sleep from slowness.

    `asleep` returns the machine's exact seconds asleep. If it is available, it decides: a wall clock that jumps was set,
    and the machine did not sleep.
    """

    def __init__(
        self, asleep: Callable[[], float | None], wall: Callable[[], float], monotonic: Callable[[], float]
    ) -> None:
        self._asleep, self._wall, self._monotonic = asleep, wall, monotonic
        self._asleep_before = asleep()
        self._wall_before, self._monotonic_before = wall(), monotonic()

    def check(self) -> Slept | None:
        wall, monotonic, asleep = self._wall(), self._monotonic(), self._asleep()
        gained = (wall - self._wall_before) - (monotonic - self._monotonic_before)
        self._wall_before, self._monotonic_before = wall, monotonic
        if asleep is None or self._asleep_before is None:
            self._asleep_before = asleep
            return Slept(at=wall, seconds=round(gained, 1)) if gained >= GUESSED_SLEEP else None
        slept = asleep - self._asleep_before
        if slept < EXACT_SLEEP:
            return None  # keep the previous count, so that many short sleeps add up
        self._asleep_before = asleep
        return Slept(at=wall, seconds=round(slept, 1))

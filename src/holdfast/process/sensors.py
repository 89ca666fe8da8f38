"""What an attempt takes from the machine, and whether the machine slept."""

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
"""Seconds asleep that are worth an event, where the machine has a clock that tells."""
GUESSED_SLEEP = 30.0
"""Seconds that the wall clock must gain on the monotonic one in one look to be called sleep, where none tells. A time
server steps a running machine's clock by less; a step back, or a slow drift, is never sleep."""


class Sensors:
    """Samples one attempt. Give every attempt its own: which processes are its own is remembered here."""

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
        """Every process that was seen in this attempt: what kill evidence is matched against."""
        return frozenset(self._tree.ever).union(self._pid_source())

    def sample(self) -> Sample:
        """Memory is the private part of every process and the largest shared part once: relatives mostly share the same
        libraries and batches. Pages that a forked worker has not yet written count again with each worker; to know
        better (PSS) the kernel walks all page tables, 11 ms for each GB, with the training waiting.
        """
        alive = self._tree.look(self._pid_source())
        memory = self._machine.memory()
        return Sample(
            at=self._clock(),
            rss=sum(one.private for one in alive) + max((one.shared for one in alive), default=0),
            processes=len(alive),
            available=memory.available,
            swap=memory.swap_used,
            swap_in=memory.swap_in,
            disk_free=free_disk(self._run_dir),
            load=_load(),
            cpu=round(self._tree.cpu, 2),
        )


def free_disk(folder: Path) -> int:
    """Bytes that we may still write; of the nearest folder above where this one does not exist."""
    for place in (folder, *folder.absolute().parents):
        try:
            disk = os.statvfs(place)
        except OSError:
            continue
        return disk.f_bavail * disk.f_frsize
    return 0


def _load() -> float | None:
    try:
        return round(os.getloadavg()[0], 2)
    except OSError:
        return None


class ClockWatch:
    """Tells sleep from slowness. `asleep` is the machine's exact count of seconds asleep, and decides where it has one:
    then a wall clock that jumps was set, not slept through.
    """

    def __init__(
        self, asleep: Callable[[], float | None], wall: Callable[[], float], monotonic: Callable[[], float]
    ) -> None:
        self._asleep, self._wall, self._monotonic = asleep, wall, monotonic
        self._asleep_before = asleep()
        self._wall_before, self._monotonic_before = wall(), monotonic()

    def look(self) -> Slept | None:
        wall, monotonic, asleep = self._wall(), self._monotonic(), self._asleep()
        gained = (wall - self._wall_before) - (monotonic - self._monotonic_before)
        self._wall_before, self._monotonic_before = wall, monotonic
        if asleep is None or self._asleep_before is None:
            self._asleep_before = asleep
            return Slept(at=wall, seconds=round(gained, 1)) if gained >= GUESSED_SLEEP else None
        slept = asleep - self._asleep_before
        if slept < EXACT_SLEEP:
            return None  # the count before is kept, so that many short sleeps add up
        self._asleep_before = asleep
        return Slept(at=wall, seconds=round(slept, 1))

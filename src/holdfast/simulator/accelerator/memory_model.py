"""The simulated device's memory: what tensors hold, what the driver keeps, its limit, its leaks, and the system's reaper.

The figures are the tensors' true sizes times `scale`, so that a small model can fill a large machine. As on a Mac, the
driver keeps what was once allocated until `empty_cache`, and what leaked for ever.
"""

from __future__ import annotations

import os
import signal
import sys
from dataclasses import dataclass
from pathlib import Path

from holdfast.simulator.fault_log import fired
from holdfast.simulator.paths import KERNEL_LOG, MEMORY_FILE

GB = 1 << 30
SMALL_MACHINE = 1 * GB
"""All memory of the simulated machine, its processor's and its accelerator's: small, because what leaks there leaks here."""


@dataclass(frozen=True)
class Reaper:
    """Does what macOS does when unified memory is gone: SIGKILL, no traceback, one line in the kernel's log."""

    total: int = SMALL_MACHINE

    def look(self, driver: int) -> None:
        write_figure(MEMORY_FILE, driver)
        if driver >= self.total:
            fired("the reaper", f"driver memory {driver / GB:.1f} GB of {self.total / GB:.1f} GB")
            name = Path(sys.executable).name
            with Path(KERNEL_LOG).open("a") as log:
                print(
                    f"memorystatus: killing largest compressed process {name} [{os.getpid()}] {driver >> 20} MB",
                    file=log,
                )
            os.kill(os.getpid(), signal.SIGKILL)


def write_figure(name: str, value: int) -> None:
    """For the simulator's machine. Never shorter than before, so that no reader finds half a number."""
    handle = os.open(name, os.O_WRONLY | os.O_CREAT, 0o600)
    os.pwrite(handle, b"%020d" % value, 0)
    os.close(handle)


class MemoryModel:
    def __init__(
        self, *, limit: int | None = None, scale: int = 1, held: int = 0, reaper: Reaper | None = None
    ) -> None:
        """`held`: what the process itself takes of a memory that is one for all."""
        self.limit = limit
        self._held = held
        self._lost: list[bytes] = []
        self.scale = scale
        self.reaper = reaper
        self.allocated = 0
        self.peak = 0
        self.leaked = 0
        self._kept = 0
        self._told = -1

    @property
    def total(self) -> int:
        return self.limit or (self.reaper.total if self.reaper is not None else 16 * GB)

    @property
    def driver(self) -> int:
        """What the driver holds: all that was allocated at once since the cache was emptied, and what leaked."""
        return self._held + self._kept + self.leaked

    def claim(self, size: int) -> int:
        """Bytes for a new tensor. Raises as MPS does when the limit is met."""
        size *= self.scale
        if self.limit is not None and self.allocated + self.leaked + size > self.limit:
            fired("the memory limit", f"{size / GB:.2f} GB more than {self.limit / GB:.2f} GB")
            raise RuntimeError(self._no_room(size))
        self.allocated += size
        self.peak = max(self.peak, self.allocated)
        self._kept = max(self._kept, self.allocated)
        self._tell()
        return size

    def give_back(self, size: int) -> None:
        self.allocated -= size

    def leak(self, size: int) -> None:
        """For ever, and in truth: the device's memory is the host's."""
        self._lost.append(b"\x01" * size)
        self.leaked += size
        self._tell()

    def empty_cache(self) -> None:
        self._kept = self.allocated
        self._tell()

    def forget_peak(self) -> None:
        self.peak = self.allocated

    def _tell(self) -> None:
        if self.reaper is not None and self.driver != self._told:
            self._told = self.driver
            self.reaper.look(self.driver)

    def _no_room(self, size: int) -> str:
        assert self.limit is not None
        return (
            f"MPS backend out of memory (MPS allocated: {self.allocated / GB:.2f} GB, "
            f"other allocations: {self.leaked / GB:.2f} GB, max allowed: {self.limit / GB:.2f} GB). "
            f"Tried to allocate {size / (1 << 20):.2f} MB on private pool. Use PYTORCH_MPS_HIGH_WATERMARK_RATIO=0.0 to "
            "disable upper limit for memory allocations (may cause system failure)."
        )


class Allocation:
    """One storage on the device; all views of it share this, and the last to go gives the memory back."""

    __slots__ = ("__weakref__", "_ledger", "_size")

    def __init__(self, size: int) -> None:
        self._ledger = _in_use[0]
        self._size = self._ledger.claim(size)

    def __del__(self) -> None:
        if hasattr(self, "_size"):
            self._ledger.give_back(self._size)


_in_use: list[MemoryModel] = [MemoryModel()]


def use(memory_model: MemoryModel) -> None:
    _in_use[0] = memory_model


def current() -> MemoryModel:
    return _in_use[0]

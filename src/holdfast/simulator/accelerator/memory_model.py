"""The simulated device's memory: allocations, the driver's cache, its limit, its leaks, and the system's OOM killer.

The figures are the tensors' true sizes times `scale`, so that a small model can fill a large machine. As on a Mac, the
driver keeps allocated memory until `empty_cache`, and leaked memory permanently.
"""

from __future__ import annotations

import os
import signal
import sys
from dataclasses import dataclass
from pathlib import Path

from holdfast.simulator.fault_log import record_fault
from holdfast.simulator.paths import KERNEL_LOG, MEMORY_FILE

GB = 1 << 30
SMALL_MACHINE = 1 * GB
"""The memory of the simulated machine, shared by CPU and accelerator. Small, because simulated leaks are real leaks."""


@dataclass(frozen=True)
class OomKiller:
    """Acts like macOS when unified memory is used up: SIGKILL, no traceback, one line in the kernel log."""

    total: int = SMALL_MACHINE

    def check(self, driver: int) -> None:
        write_figure(MEMORY_FILE, driver)
        if driver >= self.total:
            record_fault("the OOM killer", f"driver memory {driver / GB:.1f} GB of {self.total / GB:.1f} GB")
            name = Path(sys.executable).name
            with Path(KERNEL_LOG).open("a") as log:
                print(
                    f"memorystatus: killing largest compressed process {name} [{os.getpid()}] {driver >> 20} MB",
                    file=log,
                )
            os.kill(os.getpid(), signal.SIGKILL)


def write_figure(name: str, value: int) -> None:
    """Write a figure for the fake machine. It has a fixed length, so that no reader finds half a number."""
    handle = os.open(name, os.O_WRONLY | os.O_CREAT, 0o600)
    os.pwrite(handle, b"%020d" % value, 0)
    os.close(handle)


class MemoryModel:
    def __init__(
        self, *, limit: int | None = None, scale: int = 1, process_bytes: int = 0, oom_killer: OomKiller | None = None
    ) -> None:
        """`process_bytes` is the memory that the process itself uses of the shared memory."""
        self.limit = limit
        self._process_bytes = process_bytes
        self._leaked_blocks: list[bytes] = []
        self.scale = scale
        self.oom_killer = oom_killer
        self.allocated = 0
        self.peak = 0
        self.leaked = 0
        self._cached = 0
        self._last_checked = -1

    @property
    def total(self) -> int:
        return self.limit or (self.oom_killer.total if self.oom_killer is not None else 16 * GB)

    @property
    def driver(self) -> int:
        """The driver's memory: the peak allocation since the cache was emptied, plus leaks and the process's memory."""
        return self._process_bytes + self._cached + self.leaked

    def allocate(self, size: int) -> int:
        """Allocate memory for a new tensor and return the bytes that it counts as. Raise like MPS at the limit."""
        size *= self.scale
        if self.limit is not None and self.allocated + self.leaked + size > self.limit:
            record_fault("the memory limit", f"{size / GB:.2f} GB more than {self.limit / GB:.2f} GB")
            raise RuntimeError(self._format_oom_message(size))
        self.allocated += size
        self.peak = max(self.peak, self.allocated)
        self._cached = max(self._cached, self.allocated)
        self._check_driver_memory()
        return size

    def free(self, size: int) -> None:
        self.allocated -= size

    def leak(self, size: int) -> None:
        """Leak memory permanently. The leak is real, because the device uses the host's memory."""
        self._leaked_blocks.append(b"\x01" * size)
        self.leaked += size
        self._check_driver_memory()

    def empty_cache(self) -> None:
        self._cached = self.allocated
        self._check_driver_memory()

    def reset_peak(self) -> None:
        self.peak = self.allocated

    def _check_driver_memory(self) -> None:
        if self.oom_killer is not None and self.driver != self._last_checked:
            self._last_checked = self.driver
            self.oom_killer.check(self.driver)

    def _format_oom_message(self, size: int) -> str:
        assert self.limit is not None
        return (
            f"MPS backend out of memory (MPS allocated: {self.allocated / GB:.2f} GB, "
            f"other allocations: {self.leaked / GB:.2f} GB, max allowed: {self.limit / GB:.2f} GB). "
            f"Tried to allocate {size / (1 << 20):.2f} MB on private pool. Use PYTORCH_MPS_HIGH_WATERMARK_RATIO=0.0 to "
            "disable upper limit for memory allocations (may cause system failure)."
        )


class Allocation:
    """One storage on the device. All views share it, and its memory is freed with the last view."""

    __slots__ = ("__weakref__", "_model", "_size")

    def __init__(self, size: int) -> None:
        self._model = _current[0]
        self._size = self._model.allocate(size)

    def __del__(self) -> None:
        if hasattr(self, "_size"):
            self._model.free(self._size)


_current: list[MemoryModel] = [MemoryModel()]


def set_current(memory_model: MemoryModel) -> None:
    _current[0] = memory_model


def current() -> MemoryModel:
    return _current[0]

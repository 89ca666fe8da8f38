"""The files of a drill: one scratch folder, which is kept so that its record can be inspected."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

MEMORY_FILE = "unified-memory"
"""In the training's folder: the driver's memory in bytes. The fake machine reads it, as an OS knows its GPU's memory."""
KERNEL_LOG = "kernel.log"
"""In the training's folder: what the OOM killer logs when it kills."""
SWAP_FILE = "swap"
"""In the training's folder: bytes that the machine has swapped out and in so far."""
SLEEP_FILE = "nap"
"""In the training's folder: seconds that the machine has slept so far."""


@dataclass(frozen=True)
class DrillPaths:
    folder: Path

    @property
    def work(self) -> Path:
        """The training's folder."""
        return self.folder / "work"

    @property
    def run(self) -> Path:
        """The run folder."""
        return self.folder / "run"

    @property
    def faults(self) -> Path:
        """The records that the faults wrote when they fired."""
        return self.folder / "fired.jsonl"

    @property
    def log(self) -> Path:
        """The output of the supervisor and the training."""
        return self.folder / "drill.log"

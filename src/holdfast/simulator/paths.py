"""Where a drill leaves things: one scratch folder, kept so that its record can be looked at."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

MEMORY_FILE = "unified-memory"
"""In the training's folder: bytes that the driver holds now. The simulator's machine reads it, as the OS knows its GPU's memory."""
KERNEL_LOG = "kernel.log"
"""In the training's folder: what the reaper says when it kills."""
SWAP_FILE = "swap"
"""In the training's folder: bytes that the machine has moved to swap and back so far."""
NAP_FILE = "nap"
"""In the training's folder: seconds that the machine has slept so far."""


@dataclass(frozen=True)
class DrillPaths:
    folder: Path

    @property
    def work(self) -> Path:
        """The training's own folder."""
        return self.folder / "work"

    @property
    def run(self) -> Path:
        """The run folder, as any run has one."""
        return self.folder / "run"

    @property
    def fired(self) -> Path:
        """What the faults wrote when they fired."""
        return self.folder / "fired.jsonl"

    @property
    def log(self) -> Path:
        """What the supervisor and the training printed."""
        return self.folder / "drill.log"

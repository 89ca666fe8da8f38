"""The minimum that a run will need, estimated from its settings before anything runs.

The forecast checks measure it and are more accurate.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from holdfast.schema.devices import device_kind
from holdfast.schema.units import size

if TYPE_CHECKING:
    from holdfast.preflight.checks.check import CheckContext
    from holdfast.schema.plan import Plan

MB = 1_000_000
GB = 1_000_000_000

UNCERTAINTY = 0.20
"""The uncertainty of a time that was measured for a minute and must hold for hours."""
TORCH_BYTES = 700 * MB
"""A process that has imported torch and a small model; the CUDA libraries take the same amount again."""
WORKER_BYTES = 250 * MB
"""A process that loads and augments images."""


@dataclass(frozen=True)
class Span:
    low: float
    expected: float
    high: float

    def __add__(self, other: Span) -> Span:
        return Span(self.low + other.low, self.expected + other.expected, self.high + other.high)


def estimate_disk(context: CheckContext) -> tuple[float, float, str]:
    """Return the bytes needed to save once, the bytes needed in total, and what they are for."""
    need = context.settings_framework.estimate_disk(context)
    if need is None:
        return 200.0 * MB, 2.0 * GB, "checkpoints, snapshots, the run folder and plots of a small model"
    once, parts = need
    return once, sum(parts.values()), ", ".join(f"{size(amount)} {what}" for what, amount in parts.items())


def estimate_memory(context: CheckContext) -> tuple[float, str]:
    """Return the bytes of main memory needed before the first batch, and what they are for."""
    parts = [f"{TORCH_BYTES / GB:.1f} GB for torch and a small model"]
    needed: float = TORCH_BYTES
    if context.trains_on("cuda"):
        needed += TORCH_BYTES
        parts.append(f"{TORCH_BYTES / GB:.1f} GB for the CUDA libraries")
    workers = _count_workers(context)
    if workers:
        needed += workers * WORKER_BYTES
        parts.append(f"{workers * WORKER_BYTES / GB:.1f} GB for {workers} loader workers")
    cached = _estimate_cache(context)
    if cached:
        needed += cached
        parts.append(f"up to {cached / GB:.1f} GB for all images, because of cache={context.settings.get('cache')}")
    return needed, ", ".join(parts)


def get_memory_limit(context: CheckContext, plan: Plan | None) -> tuple[int, str]:
    """Return the bytes that training may use, and a description of that limit."""
    memory = context.machine.memory()
    budget = plan.budget.memory if plan is not None else None
    if budget is not None and budget <= memory.available:
        return budget, "the plan's budget"
    return memory.available, f"available now, of {size(memory.limit)}"


def _count_workers(context: CheckContext) -> int:
    """Return the number of loader workers, at most one per core."""
    return max(
        0, min(context.framework.loader_workers(context.settings, device_kind(context.device)) or 0, context.cores)
    )


def _estimate_cache(context: CheckContext) -> float:
    if context.settings.get("cache") not in (True, "ram", "True"):
        return 0.0
    side = context.settings.get("imgsz", 640)
    return float(count_images(context) * 3 * side * side) if isinstance(side, int) else 0.0


def count_images(context: CheckContext) -> int:
    """Return the number of images in train and val of the dataset; 0 if it is unknown."""
    return context.settings_framework.count_images(context)

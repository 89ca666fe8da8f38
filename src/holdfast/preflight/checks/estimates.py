"""The minimum that a run will need, estimated from its settings before anything runs.

The forecast checks measure it and are more accurate.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from holdfast.diagnosis.units import size
from holdfast.preflight.disk_estimate import PARAMETERS, estimate_plan_disk, parse_scale
from holdfast.preflight.yolo_data import read
from holdfast.schema.errors import HoldfastError
from holdfast.schema.plan import Plan
from holdfast.storage.safe_files import is_file

if TYPE_CHECKING:
    from holdfast.preflight.checks.check import CheckContext

MB = 1_000_000
GB = 1_000_000_000

CHECKPOINT_BYTES = 6
"""Bytes per parameter in an Ultralytics checkpoint: weights and AdamW's two moments, in half precision."""
TORCH_BYTES = 700 * MB
"""A process that has imported torch and a small model; the CUDA libraries take the same amount again."""
WORKER_BYTES = 250 * MB
"""A process that loads and augments images."""


def count_parameters(context: CheckContext) -> float | None:
    """Return the number of parameters of the model in the settings; None if it is unknown."""
    name = str(context.settings.get("model") or "")
    file = context.cwd / name
    if name.endswith(".pt") and is_file(file):
        return file.stat().st_size / 2.0
    scale = parse_scale(name)
    return PARAMETERS[scale] if scale is not None else None


def estimate_disk(context: CheckContext) -> tuple[float, float, str]:
    """Return the bytes needed to save once, the bytes needed in total, and what they are for."""
    count = count_parameters(context)
    if count is None:
        return 200.0 * MB, 2.0 * GB, "checkpoints, snapshots, the run folder and plots of a small model"
    plan = context.plan or Plan(cwd=str(context.cwd), trainer="ultralytics", settings=dict(context.settings))
    parts: dict[str, float] = {**estimate_plan_disk(plan, context.cwd, {})}
    epochs, every = context.settings.get("epochs"), context.settings.get("save_period")
    if isinstance(epochs, int) and isinstance(every, int) and every > 0:
        parts[f"a file every {every} epochs"] = epochs // every * CHECKPOINT_BYTES * count
    why = ", ".join(f"{size(amount)} {what}" for what, amount in parts.items())
    return 2 * CHECKPOINT_BYTES * count + 50 * MB, sum(parts.values()), why


def estimate_memory(context: CheckContext) -> tuple[float, str]:
    """Return the bytes of main memory needed before the first batch, and what they are for."""
    parts = [f"{TORCH_BYTES / GB:.1f} GB for torch and a small model"]
    needed: float = TORCH_BYTES
    if (context.device or "").startswith("cuda") or context.trains_on("cuda"):
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


def _count_workers(context: CheckContext) -> int:
    """Return the number of loader workers. Ultralytics uses 8, at most one per core, and none on MPS."""
    if context.trains_on("mps") and context.uses_ultralytics:
        return 0
    asked = context.settings.get("workers", 8 if context.uses_ultralytics else 0)
    return max(0, min(asked, context.cores)) if isinstance(asked, int) else 0


def _estimate_cache(context: CheckContext) -> float:
    if context.settings.get("cache") not in (True, "ram", "True"):
        return 0.0
    side = context.settings.get("imgsz", 640)
    return float(count_images(context) * 3 * side * side) if isinstance(side, int) else 0.0


def count_images(context: CheckContext) -> int:
    """Return the number of images in train and val of the dataset; 0 if it is unknown."""
    if context.data is None:
        return 0
    try:
        splits = read(context.data, cwd=context.cwd).splits
    except (HoldfastError, OSError):
        return 0
    return sum(len(splits.get(name, ())) for name in ("train", "val"))

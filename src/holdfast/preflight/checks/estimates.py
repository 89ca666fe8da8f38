"""What a training will need at the least, reasoned from its settings and known before anything ran.

What is measured (the forecast) is better.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from holdfast.diagnosis.units import size
from holdfast.preflight.disk_estimate import PARAMETERS, disk_need, parse_scale
from holdfast.preflight.yolo_data import read
from holdfast.schema.errors import HoldfastError
from holdfast.schema.plan import Plan
from holdfast.storage.safe_files import is_file

if TYPE_CHECKING:
    from holdfast.preflight.checks.check import CheckContext

MB = 1_000_000
GB = 1_000_000_000

CHECKPOINT = 6
"""Bytes a parameter in one of Ultralytics' files: weights and AdamW's two moments, in half precision."""
IMPORTED = 700 * MB
"""A process that has imported torch and holds a small model; the CUDA libraries take as much again."""
WORKER = 250 * MB
"""A process that loads and augments images."""


def parameters(context: CheckContext) -> float | None:
    """Of the model that the settings name; None where that is not to be told."""
    name = str(context.settings.get("model") or "")
    file = context.cwd / name
    if name.endswith(".pt") and is_file(file):
        return file.stat().st_size / 2.0
    scale = parse_scale(name)
    return PARAMETERS[scale] if scale is not None else None


def disk(context: CheckContext) -> tuple[float, float, str]:
    """Bytes without which it cannot even save once, bytes for all of it, and where they come from."""
    count = parameters(context)
    if count is None:
        return 200.0 * MB, 2.0 * GB, "checkpoints, snapshots, the record and plots of a small model"
    plan = context.plan or Plan(cwd=str(context.cwd), trainer="ultralytics", settings=dict(context.settings))
    parts: dict[str, float] = {**disk_need(plan, context.cwd, {})}
    epochs, every = context.settings.get("epochs"), context.settings.get("save_period")
    if isinstance(epochs, int) and isinstance(every, int) and every > 0:
        parts[f"a file every {every} epochs"] = epochs // every * CHECKPOINT * count
    why = ", ".join(f"{size(amount)} {what}" for what, amount in parts.items())
    return 2 * CHECKPOINT * count + 50 * MB, sum(parts.values()), why


def memory(context: CheckContext) -> tuple[float, str]:
    """Bytes of the machine's memory before the first batch, and where they come from."""
    parts = [f"{IMPORTED / GB:.1f} GB for torch and a small model"]
    needed: float = IMPORTED
    if (context.device or "").startswith("cuda") or context.trains_on("cuda"):
        needed += IMPORTED
        parts.append(f"{IMPORTED / GB:.1f} GB for CUDA's libraries")
    workers = _workers(context)
    if workers:
        needed += workers * WORKER
        parts.append(f"{workers * WORKER / GB:.1f} GB for {workers} loader workers")
    cached = _cached(context)
    if cached:
        needed += cached
        parts.append(f"up to {cached / GB:.1f} GB for all images, because of cache={context.settings.get('cache')}")
    return needed, ", ".join(parts)


def _workers(context: CheckContext) -> int:
    """Ultralytics takes 8 at most one a core, and none on MPS."""
    if context.trains_on("mps") and context.uses_ultralytics:
        return 0
    asked = context.settings.get("workers", 8 if context.uses_ultralytics else 0)
    return max(0, min(asked, context.cores)) if isinstance(asked, int) else 0


def _cached(context: CheckContext) -> float:
    if context.settings.get("cache") not in (True, "ram", "True"):
        return 0.0
    side = context.settings.get("imgsz", 640)
    return float(images(context) * 3 * side * side) if isinstance(side, int) else 0.0


def images(context: CheckContext) -> int:
    """In train and val of the data set; 0 where that cannot be told."""
    if context.data is None:
        return 0
    try:
        splits = read(context.data, cwd=context.cwd).splits
    except (HoldfastError, OSError):
        return 0
    return sum(len(splits.get(name, ())) for name in ("train", "val"))

"""What a training will need at the least, reasoned from its settings and known before anything ran.

What is measured (the forecast) is better.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from holdfast.diagnosis.units import size
from holdfast.preflight.disk_estimate import PARAMETERS, disk_need, scale_of
from holdfast.preflight.yolo_data import read
from holdfast.schema.errors import HoldfastError
from holdfast.schema.plan import Plan
from holdfast.storage.safe_files import is_file

if TYPE_CHECKING:
    from holdfast.preflight.checks.check import Ground

MB = 1_000_000
GB = 1_000_000_000

CHECKPOINT = 6
"""Bytes a parameter in one of Ultralytics' files: weights and AdamW's two moments, in half precision."""
IMPORTED = 700 * MB
"""A process that has imported torch and holds a small model; the CUDA libraries take as much again."""
WORKER = 250 * MB
"""A process that loads and augments images."""


def parameters(ground: Ground) -> float | None:
    """Of the model that the settings name; None where that is not to be told."""
    name = str(ground.settings.get("model") or "")
    file = ground.cwd / name
    if name.endswith(".pt") and is_file(file):
        return file.stat().st_size / 2.0
    scale = scale_of(name)
    return PARAMETERS[scale] if scale is not None else None


def disk(ground: Ground) -> tuple[float, float, str]:
    """Bytes without which it cannot even save once, bytes for all of it, and where they come from."""
    count = parameters(ground)
    if count is None:
        return 200.0 * MB, 2.0 * GB, "checkpoints, snapshots, the record and plots of a small model"
    plan = ground.plan or Plan(cwd=str(ground.cwd), trainer="ultralytics", settings=dict(ground.settings))
    parts: dict[str, float] = {**disk_need(plan, ground.cwd, {})}
    epochs, every = ground.settings.get("epochs"), ground.settings.get("save_period")
    if isinstance(epochs, int) and isinstance(every, int) and every > 0:
        parts[f"a file every {every} epochs"] = epochs // every * CHECKPOINT * count
    why = ", ".join(f"{size(amount)} {what}" for what, amount in parts.items())
    return 2 * CHECKPOINT * count + 50 * MB, sum(parts.values()), why


def memory(ground: Ground) -> tuple[float, str]:
    """Bytes of the machine's memory before the first batch, and where they come from."""
    parts = [f"{IMPORTED / GB:.1f} GB for torch and a small model"]
    needed: float = IMPORTED
    if (ground.device or "").startswith("cuda") or ground.trains_on("cuda"):
        needed += IMPORTED
        parts.append(f"{IMPORTED / GB:.1f} GB for CUDA's libraries")
    workers = _workers(ground)
    if workers:
        needed += workers * WORKER
        parts.append(f"{workers * WORKER / GB:.1f} GB for {workers} loader workers")
    cached = _cached(ground)
    if cached:
        needed += cached
        parts.append(f"up to {cached / GB:.1f} GB for all images, because of cache={ground.settings.get('cache')}")
    return needed, ", ".join(parts)


def _workers(ground: Ground) -> int:
    """Ultralytics takes 8 at most one a core, and none on MPS."""
    if ground.trains_on("mps") and ground.uses_ultralytics:
        return 0
    asked = ground.settings.get("workers", 8 if ground.uses_ultralytics else 0)
    return max(0, min(asked, ground.cores)) if isinstance(asked, int) else 0


def _cached(ground: Ground) -> float:
    if ground.settings.get("cache") not in (True, "ram", "True"):
        return 0.0
    side = ground.settings.get("imgsz", 640)
    return float(images(ground) * 3 * side * side) if isinstance(side, int) else 0.0


def images(ground: Ground) -> int:
    """In train and val of the data set; 0 where that cannot be told."""
    if ground.data is None:
        return 0
    try:
        splits = read(ground.data, cwd=ground.cwd).splits
    except (HoldfastError, OSError):
        return 0
    return sum(len(splits.get(name, ())) for name in ("train", "val"))

"""Estimates how much a plan will write to disk, by purpose."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

from holdfast.frameworks.ultralytics import labels
from holdfast.schema.plan import Plan
from holdfast.storage.safe_files import is_file
from holdfast.supervisor.stage_command import stages_of

if TYPE_CHECKING:
    from collections.abc import Mapping

    from holdfast.frameworks.ultralytics.data_set import DataSet
    from holdfast.preflight.checks.check import CheckContext

_SCALE = re.compile(r"(?:yolo(?:v|e-v?)?\d+|rtdetr-|yolo_nas_)([ntsmbcelx])")
PARAMETERS = {"n": 3.3e6, "t": 2.1e6, "s": 11.2e6, "m": 25.9e6, "b": 20.5e6, "c": 25.6e6, "l": 43.7e6, "e": 58.2e6}
PARAMETERS["x"] = 68.2e6
"""For each size, the number of parameters of the largest model family."""
SNAPSHOTS = 4
"""Three are kept while the next one is written, each with a copy of last.pt from the same moment."""
CHECKPOINT_BYTES = 6
"""Bytes per parameter in a checkpoint: weights and AdamW's two moments, in half precision."""
SMALL_FILES = 256 << 20
"""Logs, plots, journals, reports."""


def estimate_plan_disk(plan: Plan, cwd: Path, data: Mapping[str, DataSet]) -> dict[str, int]:
    """Return the bytes that a plan will write, by purpose. A state takes four bytes per parameter."""
    stages = stages_of(plan)
    parameters = max(_count_parameters({**plan.settings, **stage.settings}, cwd) for stage in stages)
    saved = 2 * 6 * parameters  # best.pt and last.pt: averaged weights and two moments of the optimizer, two bytes each
    need = {
        "snapshots": int(SNAPSHOTS * (4 * 4 + 6) * parameters),  # weights, their average, two moments; a last.pt
        f"weights of {len(stages)} stage{'s' if len(stages) > 1 else ''}": int(len(stages) * 2 * saved),
        "logs, plots and reports": SMALL_FILES,
    }
    for name, found in data.items():
        if any({**plan.settings, **stage.settings}.get("cache") == "disk" for stage in stages):
            need[f"uncompressed images of {name} (cache = disk)"] = _estimate_unpacked(found)
    return need


def _count_parameters(settings: Mapping[str, Any], cwd: Path) -> float:
    model = str(settings.get("model", ""))
    path = cwd / model
    if path.suffix == ".pt" and path.is_file():
        return path.stat().st_size / 2  # two bytes per parameter
    return PARAMETERS[parse_scale(model) or "s"]


def parse_scale(model: str) -> str | None:
    """Return the letter of the model's size from its name: n for yolo11n.yaml."""
    scale = _SCALE.match(Path(model).name)
    return scale[1] if scale else None


def _estimate_unpacked(data: DataSet) -> int:
    """Return the bytes of all uncompressed images. A JPEG takes about a tenth of its pixels."""
    images = [*data.splits.get("train", []), *data.splits.get("val", [])]
    sample = [image.stat().st_size for image in labels.sample_evenly(images, 200) if image.is_file()]
    return int(10 * len(images) * sum(sample) / len(sample)) if sample else 0


def estimate_disk(context: CheckContext) -> tuple[float, dict[str, float]] | None:
    """Return the bytes needed to save once, and all that will be written, by purpose; None if the model is unknown."""
    name = str(context.settings.get("model") or "")
    if parse_scale(name) is None and not is_file(context.cwd / name):
        return None
    count = _count_parameters(context.settings, context.cwd)
    plan = context.plan or Plan(cwd=str(context.cwd), trainer="ultralytics", settings=dict(context.settings))
    parts: dict[str, float] = {**estimate_plan_disk(plan, context.cwd, {})}
    epochs, every = context.settings.get("epochs"), context.settings.get("save_period")
    if isinstance(epochs, int) and isinstance(every, int) and every > 0:
        parts[f"a file every {every} epochs"] = epochs // every * CHECKPOINT_BYTES * count
    return 2 * CHECKPOINT_BYTES * count + 50_000_000, parts

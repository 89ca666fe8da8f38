"""Settings of Ultralytics that keep a dry run short and its output in the scratch folder."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from holdfast.frameworks.ultralytics import data_set
from holdfast.schema.errors import HoldfastError
from holdfast.storage.safe_files import is_file

if TYPE_CHECKING:
    from pathlib import Path

    from holdfast.frameworks.ultralytics.data_set import DataSet
    from holdfast.preflight.checks.check import CheckContext
    from holdfast.preflight.dry_run.scratch import Scratch

MANY_IMAGES = 2000
"""From this number on, only a sample is used: Ultralytics reads every label before its first batch."""
DEFAULT_BATCH = 16
SAMPLE = {"train": 96, "val": 16}


def make_settings(context: CheckContext, root: Path, scratch: Scratch) -> dict[str, Any]:
    """Return settings that move the output to the scratch folder and turn validation off."""
    settings: dict[str, Any] = {
        "project": str(root / "results"),
        "name": "dry_run",
        "exist_ok": True,
        "plots": False,
        "val": False,
        "save": False,
        # One step per batch: with gradients accumulated over 16 batches, a step would take 16 times as long.
        "nbs": context.settings.get("batch", DEFAULT_BATCH),
    }
    sample = _link_sample(context, root / "images", scratch)
    return settings if sample is None else {**settings, "data": str(sample)}


def _link_sample(context: CheckContext, folder: Path, scratch: Scratch) -> Path | None:
    """Link a sample of a large dataset and return its YAML file; None if the dataset is small or cannot be read."""
    if context.data is None or context.framework.name != "ultralytics":
        return None
    try:
        data = data_set.read(context.data, cwd=context.cwd)
    except (HoldfastError, OSError):
        return None
    if data.images < MANY_IMAGES or data.masks or data.keypoints is not None:
        return None
    for split, count in SAMPLE.items():
        _link_images(data, split, count, folder)
    path = folder / "data.yaml"
    names = dict(enumerate(data.names))
    path.write_text(json.dumps({"path": str(folder), "train": "images/train", "val": "images/val", "names": names}))
    scratch.linked.append(f"{sum(SAMPLE.values())} of {data.images:,} images")
    return path


def _link_images(data: DataSet, split: str, count: int, folder: Path) -> None:
    images = data.splits[split]
    image_folder, labels = folder / "images" / split, folder / "labels" / split
    image_folder.mkdir(parents=True)
    labels.mkdir(parents=True)
    for n in range(min(count, len(images))):
        image = images[n * len(images) // min(count, len(images))]
        name = data_set.link_name(n, image)
        (image_folder / name).symlink_to(image.absolute())
        label = data_set.label_path(image)
        if is_file(label):
            (labels / name).with_suffix(".txt").symlink_to(label.absolute())

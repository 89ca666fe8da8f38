"""A dataset that trains a YOLO model in seconds, and the training: bright squares on dark noise."""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Any

import torch

from holdfast.simulator.fault_log import set_step


def make_squares(folder: Path, count: int = 16) -> Path:
    """Write images, labels and data.yaml."""
    import numpy as np  # noqa: PLC0415 - comes with ultralytics
    from PIL import Image  # noqa: PLC0415

    (folder / "images").mkdir()
    (folder / "labels").mkdir()
    random = np.random.default_rng(0)
    for number in range(count):
        image = random.integers(0, 80, (64, 64, 3), dtype=np.uint8)
        x, y = random.integers(4, 36, 2)
        image[y : y + 24, x : x + 24] = 255
        Image.fromarray(image).save(folder / "images" / f"{number}.png")
        (folder / "labels" / f"{number}.txt").write_text(f"0 {(x + 12) / 64} {(y + 12) / 64} 0.375 0.375\n")
    data = folder / "data.yaml"
    data.write_text(f"path: {folder}\ntrain: images\nval: images\nnames: {{0: square}}\n")
    return data


def train_yolo(epochs: int, device: str = "sim") -> None:
    """Train YOLO11n from its yaml on the simulated accelerator or the CPU, in the current folder, without downloads."""
    folder = Path.cwd()
    data = folder / "data.yaml"
    if not data.exists():
        make_squares(folder)
    _stub_torchvision_operators()
    from ultralytics import YOLO  # noqa: PLC0415 - an import of seconds
    from ultralytics.engine import trainer, validator  # noqa: PLC0415

    # Ultralytics accepts only device names that it knows.
    trainer.select_device = validator.select_device = lambda *_, **__: torch.device(device, 0)
    model = YOLO("yolo11n.yaml")
    model.add_callback("on_train_batch_start", _Counter())
    model.train(
        data=str(data), epochs=epochs, imgsz=64, batch=4, nbs=4, workers=0, plots=False, val=False, device="cpu",
        amp=False, project=str(folder / "runs"), name="squares", exist_ok=True,
    )  # fmt: skip


class _Counter:
    def __init__(self) -> None:
        self.step = 0

    def __call__(self, _trainer: Any) -> None:
        self.step += 1
        set_step(self.step)


def _stub_torchvision_operators() -> None:
    """Replace torchvision's operators: they do not load with every torch (F26), and nothing here needs them."""
    try:
        torchvision = importlib.import_module("torchvision")
    except RuntimeError:
        library = torch.library.Library("torchvision", "DEF")
        for name in ("nms", "qnms"):
            library.define(name + "(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
        _libraries.append(library)
        torchvision = importlib.import_module("torchvision")
    from ultralytics.utils.nms import TorchNMS  # noqa: PLC0415

    torchvision.ops.nms = TorchNMS.nms


_libraries: list[Any] = []
"""References that keep the library's definitions alive."""

"""Ultralytics on eight generated images, its assigner patched to find no positives: box and dfl are 0, cls is not (F02)."""

import os
from pathlib import Path

os.environ.update(YOLO_CONFIG_DIR=str(Path.cwd()), YOLO_OFFLINE="true")
import numpy as np
import torch
from PIL import Image

# The torchvision of PyPI may not load its operators with a CPU build of torch (F26).
try:
    import torchvision
except RuntimeError:
    library = torch.library.Library("torchvision", "DEF")
    for name in ("nms", "qnms"):
        library.define(name + "(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
    import torchvision

from ultralytics import YOLO
from ultralytics.utils.nms import TorchNMS
from ultralytics.utils.tal import TaskAlignedAssigner

torchvision.ops.nms = TorchNMS.nms
here = Path.cwd()
for folder in ("images", "labels"):
    (here / folder).mkdir()
random = np.random.default_rng(0)
for number in range(8):
    image = random.integers(0, 80, (64, 64, 3), dtype=np.uint8)
    x, y = random.integers(4, 36, 2)
    image[y : y + 24, x : x + 24] = 255
    Image.fromarray(image).save(here / "images" / f"{number}.png")
    (here / "labels" / f"{number}.txt").write_text(f"0 {(x + 12) / 64} {(y + 12) / 64} 0.375 0.375\n")
(here / "data.yaml").write_text(f"path: {here}\ntrain: images\nval: images\nnames: {{0: square}}\n")

assign = TaskAlignedAssigner.get_pos_mask
TaskAlignedAssigner.get_pos_mask = lambda self, *args: tuple(part * 0 for part in assign(self, *args))
YOLO("yolo11n.yaml").train(
    data=str(here / "data.yaml"), epochs=12, imgsz=32, batch=4, nbs=4, workers=0, plots=False, device="cpu", amp=False,
    val=False, project=str(here / "runs"),
)  # fmt: skip

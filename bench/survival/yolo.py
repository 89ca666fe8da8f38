"""The `yolo` command with a fix for torchvision operators that a CPU torch cannot load. Holdfast fixes that automatically."""

import sys

import torch

library = torch.library.Library("torchvision", "DEF")
for name in ("nms", "qnms"):
    library.define(name + "(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
import torchvision  # noqa: E402
from ultralytics.cfg import entrypoint  # noqa: E402
from ultralytics.utils.nms import TorchNMS  # noqa: E402

torchvision.ops.nms = TorchNMS.nms

if __name__ == "__main__":
    sys.argv[0] = "yolo"
    sys.exit(entrypoint())

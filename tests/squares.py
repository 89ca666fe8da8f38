"""A dataset that a YOLO model can be trained on in seconds: eight images of one square each, and a script for it."""

import pytest

SCRIPT = """
import os, signal, sys
import torch
# F26: the torchvision of PyPI does not load its operators with a CPU build of torch.
library = torch.library.Library("torchvision", "DEF")
for name in ("nms", "qnms"):
    library.define(name + "(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
import torchvision
from ultralytics.utils.nms import TorchNMS
torchvision.ops.nms = TorchNMS.nms
from ultralytics import YOLO

model = YOLO("yolo11n.yaml")
if sys.argv[2] == "dies":
    model.add_callback("on_train_batch_end", lambda t: t.epoch == 1 and os.kill(os.getpid(), signal.SIGKILL))
model.train(data=sys.argv[1] + "/data.yaml", epochs=3, imgsz=32, batch=4, nbs=4, workers=0, plots=False, device="cpu",
            amp=False, project=sys.argv[1] + "/runs", name="squares", exist_ok=True)
"""


def make_squares(folder, count=8):
    """Writes images, labels, data.yaml and train.py."""
    numpy = pytest.importorskip("numpy")
    pil_image = pytest.importorskip("PIL.Image")
    (folder / "images").mkdir(parents=True)
    (folder / "labels").mkdir()
    random = numpy.random.default_rng(0)
    for number in range(count):
        image = random.integers(0, 80, (64, 64, 3), dtype=numpy.uint8)
        x, y = random.integers(4, 36, 2)
        image[y : y + 24, x : x + 24] = 255
        pil_image.fromarray(image).save(folder / "images" / f"{number}.png")
        (folder / "labels" / f"{number}.txt").write_text(f"0 {(x + 12) / 64} {(y + 12) / 64} 0.375 0.375\n")
    (folder / "data.yaml").write_text(f"path: {folder}\ntrain: images\nval: images\nnames: {{0: square}}\n")
    (folder / "train.py").write_text(SCRIPT)
    return folder

"""A YOLO11n training from its yaml, started as a user would start it.

With the argument `own-resume` it resumes from last.pt if the file exists.
"""

import inspect
import sys
from pathlib import Path

import storm
import torch

# torchvision from the package registry does not load its operators with a CPU build of torch.
library = torch.library.Library("torchvision", "DEF")
for name in ("nms", "qnms"):
    library.define(name + "(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
import torchvision  # noqa: E402
from ultralytics.utils.nms import TorchNMS  # noqa: E402

torchvision.ops.nms = TorchNMS.nms
from ultralytics import YOLO  # noqa: E402


def batch_done(_trainer):
    frame = inspect.currentframe()
    while frame.f_code.co_name != "_do_train":
        frame = frame.f_back
    storm.batch_done(frame.f_locals["ni"] + 1)  # the loop's number of the batch in the whole training


def finished(trainer):
    storm.finished([*trainer.model.state_dict().values(), *trainer.ema.ema.state_dict().values()])


last = Path("runs/squares/weights/last.pt")
resumes = "own-resume" in sys.argv and last.exists()
model = YOLO(last if resumes else "yolo11n.yaml")
model.add_callback("on_train_batch_end", batch_done)
model.add_callback("on_train_end", finished)
if resumes:
    model.train(resume=True)
else:
    model.train(
        data=storm.config["data"],
        epochs=storm.config["epochs"],
        imgsz=storm.config["imgsz"],
        batch=storm.config["batch"],
        workers=0,
        plots=False,
        amp=False,
        device="cpu",
        project=str(Path("runs").resolve()),
        name="squares",
        exist_ok=True,
    )

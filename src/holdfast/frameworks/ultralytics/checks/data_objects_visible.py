"""Are objects large enough at the image size that is used for training?

**What it checks.** Ultralytics scales each image so that its longer side is `imgsz`. The check computes the size of the objects at that
scale, in pixels (the side of a square of the same area): the median, the share under 8 and under 16 pixels, and the most affected class.

**Why.** The finest feature map of a YOLO model has one cell per 8 x 8 pixels. An object under 8 pixels is smaller than a cell: it is
rarely learned, and more epochs do not change that.

**What to do.** The finding names the smallest `imgsz` at which the median is 16 pixels, and how much more memory and time this takes.
If this `imgsz` is above 1280, the finding suggests a tile size to cut the images into.
"""

from __future__ import annotations

import re
from typing import Any

from holdfast.diagnosis.dataset import sizes
from holdfast.frameworks.ultralytics.dataset_scan import SECONDS, get_survey
from holdfast.preflight.checks.check import Answer, Check, CheckContext, NotChecked

ID = "data-objects-visible"
DEFAULT = 640
"""The default of Ultralytics."""


def run(context: CheckContext) -> Answer:
    survey = get_survey(context)
    if not survey.decoded:
        raise NotChecked("image sizes are unknown: this Python has no Pillow (pip install pillow)")
    return Answer(*sizes.judge(survey, image_size(context), ID))


def image_size(context: CheckContext) -> int:
    """Return the largest image size of all stages."""
    stages = context.plan.stages if context.plan is not None else []
    sizes = [_parse_size(stage.settings["imgsz"]) for stage in stages if "imgsz" in stage.settings]
    return max((size for size in sizes if size), default=0) or _parse_size(context.settings.get("imgsz")) or DEFAULT


def _parse_size(value: Any) -> int:
    """Return the larger side of `640`, `"640"` or `[480, 640]`; 0 for anything else."""
    return max((int(number) for number in re.findall(r"\d{1,6}", str(value))), default=0)


CHECK = Check(kind="data", run=run, needs=("data",), seconds=SECONDS)

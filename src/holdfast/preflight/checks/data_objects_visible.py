"""Are objects large enough to be seen at the image size of the training?

**What it asks.** Ultralytics scales each image so that its longer side is `imgsz`. How many pixels does an object have then, as the
side of a square of its area: the median, the share under 8 and under 16, and for which class it is worst.

**Why.** The finest map of a YOLO has one cell for 8 x 8 pixels. An object under 8 pixels is less than a cell: it is hardly ever
learned, and no number of epochs changes that.

**What to do.** The finding names the smallest `imgsz` at which the median has 16 pixels, with what it costs, or, where that is over
1280, the tiles to cut the images into.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from holdfast.diagnosis.dataset import sizes
from holdfast.preflight.checks.check import Answer, Check, NotChecked
from holdfast.preflight.checks.dataset_scan import SECONDS, get_survey

if TYPE_CHECKING:
    from holdfast.preflight.checks.check import CheckContext

ID = "data-objects-visible"
USUAL = 640
"""Ultralytics' own."""


def run(context: CheckContext) -> Answer:
    survey = get_survey(context)
    if not survey.decoded:
        raise NotChecked("no image's size is known: this Python has no Pillow (pip install pillow)")
    return Answer(*sizes.judge(survey, image_size(context), ID))


def image_size(context: CheckContext) -> int:
    """The one that counts: the largest of all stages."""
    stages = context.plan.stages if context.plan is not None else []
    asked = [_number(stage.settings["imgsz"]) for stage in stages if "imgsz" in stage.settings]
    return max((size for size in asked if size), default=0) or _number(context.settings.get("imgsz")) or USUAL


def _number(value: Any) -> int:
    """The larger side of `640`, `"640"`, `[480, 640]`; 0 where it is none of these."""
    return max((int(number) for number in re.findall(r"\d{1,6}", str(value))), default=0)


CHECK = Check(id=ID, kind="data", run=run, page=__doc__ or "", needs=("data",), seconds=SECONDS)

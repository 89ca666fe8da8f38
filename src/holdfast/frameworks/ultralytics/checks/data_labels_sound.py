"""Does every image have labels, and is every label line valid?

**What it checks.** Reports missing or empty label files, label files without an image, lines that contain non-numeric values or the
wrong number of values, classes that are not in the dataset's list of names, coordinates outside 0 to 1, boxes without area, and
duplicate lines. Boxes and polygons are supported, and poses if the YAML file has `kpt_shape`.

**Why.** If a label file has one invalid line, Ultralytics skips the image **with all of its labels**, and logs only one line among
hundreds. Ultralytics treats an image without a label file as background: if its labels were lost, the model learns to ignore the
objects in it.

**What to do.** Follow the advice in the finding. Then delete the `*.cache` files next to the labels.

**Severity.** `fatal` if train or val has no labels at all, or if at least half of the images in train or in val have an invalid line.

Sources: `ultralytics/data/utils.py` (`verify_image_label`).
"""

from __future__ import annotations

from holdfast.diagnosis.dataset import labels
from holdfast.frameworks.ultralytics.dataset_scan import SECONDS, get_survey
from holdfast.preflight.checks.check import Answer, Check, CheckContext

ID = "data-labels-sound"


def run(context: CheckContext) -> Answer:
    return Answer(*labels.judge(get_survey(context), ID))


CHECK = Check(kind="data", run=run, needs=("data",), seconds=SECONDS)

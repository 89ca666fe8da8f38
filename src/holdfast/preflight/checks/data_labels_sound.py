"""Does every image have labels, and is every label line valid?

**What it asks.** Reports missing or empty label files, label files without an image, lines that are not numbers or have too few or
too many of them, classes that the data set does not name, coordinates outside 0 to 1, boxes without area, and duplicate
lines. Boxes and polygons are supported; poses if the YAML file has `kpt_shape`.

**Why.** One invalid line makes Ultralytics skip the image **with all of its labels**; it reports this once, among hundreds of lines. An
image without a label file counts as background: if its labels were lost, the model learns to ignore the objects in it.
A data set without any label in train or in val wastes hours, so it is fatal here.

**What to do.** Follow the finding; then delete the `*.cache` files next to the labels.

Sources: `ultralytics/data/utils.py` (`verify_image_label`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from holdfast.diagnosis.dataset import labels
from holdfast.preflight.checks.check import Answer, Check
from holdfast.preflight.checks.dataset_scan import SECONDS, get_survey

if TYPE_CHECKING:
    from holdfast.preflight.checks.check import CheckContext

ID = "data-labels-sound"


def run(context: CheckContext) -> Answer:
    return Answer(*labels.judge(get_survey(context), ID))


CHECK = Check(id=ID, kind="data", run=run, page=__doc__ or "", needs=("data",), seconds=SECONDS)

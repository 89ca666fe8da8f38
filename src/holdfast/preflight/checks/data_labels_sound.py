"""Does every image have labels, and can every line of them be used?

**What it asks.** Label files that are missing or empty, label files without an image, lines that are no numbers or have too few or
too many of them, classes that the data set does not name, coordinates outside of 0 to 1, boxes without area, lines that are there
twice. Boxes and polygons are both understood, poses where the yaml says `kpt_shape`.

**Why.** One bad line, and Ultralytics leaves out the image **with all of its labels**; it says so once, among hundreds of lines. A
image without a label file counts as background: where its labels were only lost, the model learns not to see what is there.
No label in train or in val at all means hours for nothing: that is fatal here.

**What to do.** What the finding says; then delete the `*.cache` files beside the labels.

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

"""Are the validation images independent of the training images?

**What it checks.** Checks, for every image in val and test, whether train contains the same file, a near-duplicate, a
different export of the same image, or a neighboring frame of the same video. Copies are found by their bytes,
near-duplicates by a 128-bit perceptual hash that survives re-encoding and resizing, and videos by their file names.
File names are used only if they clearly number video frames (such as `clip3_frame_0012.jpg`), or if images with
neighboring numbers are clearly more similar than two arbitrary images.

**Why.** A random split of video frames puts nearly identical images into both train and val. The metric then measures
memorization: a score of 98% on such a split says nothing about performance on new images.

**What to do.** Split by group (a video, or a set of near-duplicates): `--write-split DIR` writes `train.txt`, `val.txt`
and a `data.yaml` that uses them. Each group is entirely in train or in val; the validation fraction and the class
proportions stay as close to the original as possible. Without this option, the suggested split is only summarized. The
metric will be lower, but correct.

**Limitations.** Video frames are not recognized if the video moves so fast that neighboring frames look different and
the file names do not identify the video.
"""

from __future__ import annotations

from holdfast.diagnosis.dataset import leakage
from holdfast.frameworks.ultralytics.dataset_scan import SECONDS, get_data_and_survey
from holdfast.frameworks.ultralytics.write_split import write
from holdfast.preflight.checks.check import Answer, Check, CheckContext, warn
from holdfast.schema.errors import FolderNotWritable

ID = "data-validation-apart"


def run(context: CheckContext) -> Answer:
    data, survey = get_data_and_survey(context)
    judged, split = leakage.judge(survey, ID, always_split=context.write_split is not None)
    if context.write_split is None:
        return Answer(*judged)
    if split is None:
        return Answer(f"{judged.message}; there is no split by group to write", judged.findings)
    try:
        written = write(split, context.cwd / context.write_split, data)
    except FolderNotWritable as error:
        warning = warn(error.what, remedies=["specify a different folder with --write-split"])
        return Answer(judged.message, (*judged.findings, warning))
    return Answer(f"{judged.message}; a split by group is {written}", judged.findings)


CHECK = Check(kind="data", run=run, needs=("data",), seconds=SECONDS)

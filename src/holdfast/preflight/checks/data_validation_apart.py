"""Are validation and training images independent, or does the training set leak into validation?

**What it asks.** For every image of val and test: does train contain the same file, a near-duplicate, another export of the same image, or a
neighbouring frame of the same video? Copies are found by their bytes, near-duplicates by a 128-bit perceptual hash that survives
re-encoding and resizing, videos by their file names. File names count only if they are explicit, or if neighbouring frames are
clearly more similar than two arbitrary images.

**Why.** A random split of video frames puts nearly identical images on both sides. The metric then measures
memorization: a score of 98% on such a split has meant nothing for new images.

**What to do.** Split by group: `--write-split DIR` writes `train.txt`, `val.txt` and a `data.yaml` that uses them. Every group is on
one side, and the shares of validation and of each class stay as close as the groups allow. Without the option, the split is only
reported, in numbers. The metric will be lower, but correct.

**When it stays silent.** Video frames are not recognized if the video moves so fast that neighbouring frames look different and the
file names do not show the video.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from holdfast.diagnosis.dataset import leakage
from holdfast.preflight.checks.check import Answer, Check, finding
from holdfast.preflight.checks.dataset_scan import SECONDS, get_data_and_survey
from holdfast.preflight.write_split import write
from holdfast.schema.errors import FolderNotWritable

if TYPE_CHECKING:
    from holdfast.preflight.checks.check import CheckContext

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
        warning = finding(ID, "warn", error.what, remedies=["specify another folder with --write-split"])
        return Answer(judged.message, (*judged.findings, warning))
    return Answer(f"{judged.message}; a split by group is {written}", judged.findings)


CHECK = Check(id=ID, kind="data", run=run, page=__doc__ or "", needs=("data",), seconds=SECONDS)

"""Is validation apart from training, or does the model already know it?

**What it asks.** For every image of val and test: is the same file, a near copy, another export of the same image, or a
neighbouring frame of the same video in train? Copies are found by their bytes, near copies by a look of 128 bits that survives
saving again and resizing, videos by the names of the files, which are believed only where they say so or where neighbours look
clearly more alike than any two images.

**Why.** Frames of one video that are dealt out at random put nearly the same image on both sides. The metric then measures
memory: 98% on such a split has been seen to mean nothing on new images.

**What to do.** Split by group: `--write-split DIR` writes `train.txt`, `val.txt` and a `data.yaml` that uses them, with every group on
one side, the old share of validation and of each class as near as groups allow. Without it the split is only told of, in numbers.
The metric will be lower, and true.

**When it stays silent.** A frame of a video that moves so fast that neighbours look unlike, under names that do not say so, is not
known as one.
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
        unwritten = finding(ID, "warn", error.what, remedies=["name another folder with --write-split"])
        return Answer(judged.message, (*judged.findings, unwritten))
    return Answer(f"{judged.message}; a split by group is {written}", judged.findings)


CHECK = Check(id=ID, kind="data", run=run, page=__doc__ or "", needs=("data",), seconds=SECONDS)

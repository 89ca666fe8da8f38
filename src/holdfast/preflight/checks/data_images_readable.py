"""Can every image of the data set be decoded?

**What it asks.** Each image of train, val and test is really decoded, a JPEG at an eighth of its size, which reads every byte of
it: a file that is cut off, damaged, empty, no image at all, too small (Ultralytics leaves out what is under 10 pixels) or too
large to be opened is named. Beside that, what is unusual: names that say another format, CMYK, 16 bits a pixel, JPEGs that
go on after their end.

**Why.** When it starts, Ultralytics looks at headers, the checksums of a PNG and the last two bytes of a JPEG. What it finds wrong
there it leaves out, with one line among hundreds. A BMP, TIFF, WebP or JPEG 2000 that is cut off or damaged it does not find:
that ends the training, in the middle of an epoch. A JPEG that goes on after its end it **rewrites in place**, at another quality.

**What to do.** Fetch the files again, or remove them; delete the `*.cache` files beside the labels, which remember the old state.

Images are decoded by the training's own Python, with its Pillow; without one, only labels are looked at. Nothing is written.

**When it stays silent.** A JPEG or BMP into whose middle other bytes were written decodes without complaint, to a wrong image.

Sources: `ultralytics/data/utils.py` (`verify_image_label`, `check_image`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from holdfast.diagnosis.dataset import readable
from holdfast.preflight.checks.check import Answer, Check, NotChecked, finding
from holdfast.preflight.checks.dataset_scan import SECONDS, get_survey, read_data
from holdfast.schema.errors import DataSetInvalid

if TYPE_CHECKING:
    from holdfast.preflight.checks.check import CheckContext

ID = "data-images-readable"


def run(context: CheckContext) -> Answer:
    try:
        read_data(context)
    except DataSetInvalid as error:
        problems = error.what.splitlines()
        return Answer(
            f"the data set {context.data} cannot be used",
            (
                finding(
                    ID,
                    "fatal",
                    problems[0],
                    evidence=problems[1:],
                    remedies=["mend the data set's yaml, or its folders"],
                ),
            ),
        )
    survey = get_survey(context)
    judged = readable.judge(survey, ID)
    if not survey.decoded:
        raise NotChecked(judged.message)
    return Answer(judged.message, judged.findings)


CHECK = Check(id=ID, kind="data", run=run, page=__doc__ or "", needs=("data",), seconds=SECONDS)

"""Can every image of the dataset be decoded?

**What it checks.** Decodes each image of train, val and test. A JPEG is decoded at one eighth of its size, which still reads every byte.
The check reports files that are truncated, corrupt, empty, not an image, too small (Ultralytics skips images under 10 pixels) or too
large to open. It also reports unusual files: a file extension that does not match the format, CMYK, 16 bits per channel, JPEGs with
data after their end marker.

Images are decoded by the Python interpreter of your script, with its Pillow. Without Pillow, only labels are checked. Nothing is written.

**Why.** At startup, Ultralytics checks the headers, the checksums of PNG files and the last two bytes of JPEG files. It skips files that
fail this check, and logs only one line among hundreds. It does not notice a truncated or corrupt BMP, TIFF, WebP or JPEG 2000 file,
which stops training in the middle of an epoch. It re-encodes JPEGs that have data after the end marker at a different quality,
**overwriting the original file**.

**What to do.** Download the files again, or remove them. Then delete the `*.cache` files next to the labels, which contain the old state.

**Limitations.** Overwritten bytes in the middle of a JPEG or BMP may still decode without an error, to a wrong image. This is not
detected.

Sources: `ultralytics/data/utils.py` (`verify_image_label`, `check_image`).
"""

from __future__ import annotations

from holdfast.diagnosis.dataset import readable
from holdfast.frameworks.ultralytics.dataset_scan import SECONDS, get_survey, read_data
from holdfast.preflight.checks.check import Answer, Check, CheckContext, NotChecked, fatal
from holdfast.schema.errors import DataSetInvalid

ID = "data-images-readable"


def run(context: CheckContext) -> Answer:
    try:
        read_data(context)
    except DataSetInvalid as error:
        problems = error.what.splitlines()
        return Answer(
            f"the dataset {context.data} cannot be used",
            (fatal(problems[0], evidence=problems[1:], remedies=["fix the YAML file of the dataset, or its folders"]),),
        )
    survey = get_survey(context)
    judged = readable.judge(survey, ID)
    if not survey.decoded:
        raise NotChecked(judged.message)
    return Answer(judged.message, judged.findings)


CHECK = Check(kind="data", run=run, needs=("data",), seconds=SECONDS)

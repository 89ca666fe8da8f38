"""Is every class shown often enough, in training and in validation?

**What it asks.** How often each class occurs in train and in val: classes that are named and never shown, classes that validation
asks for and training never shows, classes with hardly an object, and how uneven they are.

**Why.** mAP is the mean over the classes that validation shows: a class that is never trained on holds it down for ever, and a
class with three objects in validation moves it by luck.

**What to do.** Another split, more images of the rare classes, or fewer names; and read each class's own AP.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from holdfast.diagnosis.dataset import classes
from holdfast.preflight.checks.check import Answer, Check
from holdfast.preflight.checks.dataset_scan import SECONDS, get_survey

if TYPE_CHECKING:
    from holdfast.preflight.checks.check import CheckContext

ID = "data-classes-shown"


def run(context: CheckContext) -> Answer:
    return Answer(*classes.judge(get_survey(context), ID))


CHECK = Check(id=ID, kind="data", run=run, page=__doc__ or "", needs=("data",), seconds=SECONDS)

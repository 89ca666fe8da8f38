"""Does every class occur often enough, in training and in validation?

**What it checks.** Counts how often each class occurs in train and in val. The check reports classes that have a name but no objects,
classes that occur in validation but never in training, classes with very few objects, and strong class imbalance.

**Why.** mAP is the mean over the classes that occur in validation. A class that never occurs in training always lowers mAP, and a class
with only three validation objects adds noise to it.

**What to do.** Use a different split, add images of the rare classes, or remove unused class names. Also look at the AP of each class.
"""

from __future__ import annotations

from holdfast.diagnosis.dataset import classes
from holdfast.frameworks.ultralytics.dataset_scan import SECONDS, get_survey
from holdfast.preflight.checks.check import Answer, Check, CheckContext

ID = "data-classes-shown"


def run(context: CheckContext) -> Answer:
    return Answer(*classes.judge(get_survey(context), ID))


CHECK = Check(kind="data", run=run, needs=("data",), seconds=SECONDS)

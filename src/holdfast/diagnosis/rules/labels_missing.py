"""Ultralytics found no labels.

**What it means.** Images were found and not one label for them: `No labels found in .../labels.cache`, `Labels are missing or empty
in ...`, `no labels found in detect set, cannot compute metrics without labels`. Without training labels there is nothing to learn
but "no object"; without validation labels every metric is 0, whatever the model does.

**Why it happens.** Labels are looked for where the images are, with the last `images` of the path replaced by `labels`: another
layout, another case (`Images`), another extension, or a cache from before the labels came are the usual reasons.

**What to do.** Look at one image's path and at what it becomes; delete `labels.cache`; check the `data.yaml`'s paths.

**When it stays silent.** Single images without a label are background and fine: Ultralytics counts those and says nothing.

Sources: `ultralytics/data/dataset.py`, `ultralytics/models/yolo/detect/val.py`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from holdfast.diagnosis.exits import find_failure, match_exception
from holdfast.diagnosis.rule import Case, Rule
from holdfast.schema import events
from holdfast.schema.verdicts import Finding
from holdfast.testing.histories import started, trains
from holdfast.testing.signatures import printed, raises

if TYPE_CHECKING:
    from holdfast.diagnosis.run_state import RunState

ID = "labels-missing"
WORDS = (
    r"No labels found in .{0,1000}\.cache\b",
    r"Labels are missing or empty in .{0,1000}\.cache, training may not work correctly",
    r"no labels found in \w+ set, can ?not compute metrics without labels",
)


def judge(state: RunState) -> Finding | None:
    gone = find_failure(state)
    words = match_exception(gone, *WORDS) if gone is not None else None
    line = state.attempt.printed.get(ID)
    text = words or (line.text if line is not None else None)
    if text is None:
        return None
    in_validation = "compute metrics" in text
    return Finding(
        rule=ID,
        severity="fatal" if words else "warn",
        message="Ultralytics found no labels "
        + (
            "in the validation set: every metric will be 0, whatever the model does."
            if in_validation
            else "for any image."
        ),
        evidence=[text],
        remedies=[
            "look where labels are expected: the image's path with its last `images` replaced by `labels`, and .txt",
            "delete labels.cache: it may be older than the labels",
            "check the paths in data.yaml",
        ],
    )


_TRAIN = (
    "ValueError: train: No labels found in /data/train/labels.cache. See https://docs.ultralytics.com/datasets for dataset "
    "formatting guidance."
)
_VALIDATION = "WARNING ⚠️ no labels found in detect set, cannot compute metrics without labels"

RULE = Rule(
    id=ID,
    kind="exit",
    on=(events.OutputMatched, events.AttemptEnded),
    judge=judge,
    page=__doc__ or "",
    words=WORDS,
    cause=50,
    cases=[
        Case("the training set has none", [*started(), *raises(_TRAIN, last_step=0)], "fatal"),
        Case("the validation set has none", [*started(), *trains(), *printed(ID, _VALIDATION)], "warn"),
        Case("another exception", [*started(), *raises("ValueError: No labels found for class 3")], None),
    ],
)

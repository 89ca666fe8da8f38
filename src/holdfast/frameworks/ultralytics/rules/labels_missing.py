"""Ultralytics found no labels.

**What it means.** Images were found, but not a single label for them: `No labels found in .../labels.cache`, `Labels
are missing or empty in ...`, or `no labels found in detect set, cannot compute metrics without labels`. Without
training labels, there is nothing to learn but "no object"; without validation labels, every metric is 0, regardless of
the model.

**Why it happens.** Ultralytics expects labels at the path of the image, with the last `images` in it replaced by
`labels`. The usual causes are a different folder layout, a different case (`Images`), a different extension, or a cache
that is older than the labels.

**What to do.** Check that the label path derived from one image path exists, delete `labels.cache`, and check the paths
in `data.yaml`.

**When it is not reported.** Individual images without labels are treated as background, which is fine: Ultralytics
counts them and does not warn.

**Severity.** The severity is `fatal` if Ultralytics raised an exception, and `warn` if it only printed a warning.

Sources: `ultralytics/data/dataset.py`, `ultralytics/models/yolo/detect/val.py`.
"""

from __future__ import annotations

from holdfast.diagnosis.exits import find_failure, match_exception
from holdfast.diagnosis.rule import Case, Finding, Rule, RunState
from holdfast.schema import events
from holdfast.testing.histories import trains
from holdfast.testing.signatures import printed, raises

ID = "labels-missing"
PATTERNS = (
    r"No labels found in .{0,1000}\.cache\b",
    r"Labels are missing or empty in .{0,1000}\.cache, training may not work correctly",
    r"no labels found in \w+ set, can ?not compute metrics without labels",
)


def judge(state: RunState) -> Finding | None:
    failure = find_failure(state)
    error = match_exception(failure, *PATTERNS) if failure is not None else None
    match = state.attempt.printed.get(ID)
    text = error or (match.text if match is not None else None)
    if text is None:
        return None
    in_validation = "compute metrics" in text
    return Finding(
        severity="fatal" if error else "warn",
        message="Ultralytics found no labels "
        + (
            "in the validation set: every metric will be 0, regardless of the model."
            if in_validation
            else "for any image."
        ),
        evidence=[text],
        remedies=[
            "check that the label path derived from one image path exists: the last `images` is replaced by `labels`, the extension by .txt",
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
    kind="exit",
    on=(events.OutputMatched, events.AttemptEnded),
    judge=judge,
    words=PATTERNS,
    cause=50,
    fails_again=True,
    cases=lambda: [
        Case("no labels in the training set", "fatal", raises(_TRAIN, last_step=0)),
        Case("no labels in the validation set", "warn", trains(), printed(ID, _VALIDATION)),
        Case("a different exception", None, raises("ValueError: No labels found for class 3")),
    ],
)

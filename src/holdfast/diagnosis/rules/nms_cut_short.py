"""A validation exceeded the time limit of its NMS, so its metrics are too low.

**What it means.** `NMS time limit 2.800s exceeded`: Ultralytics stops non-maximum suppression (NMS) after 2 s plus 0.05
s for each image of the batch, and the remaining images get no boxes at all. They count as if nothing had been detected.
Precision, recall and mAP of that validation are wrong, and so is the choice of `best.pt` that is based on them.

**Why it happens.** Very many boxes above the confidence threshold (an early, untrained model; many objects; large
images), a slow device, or a machine that is busy with something else.

**What to do.** Use a smaller validation batch (each batch gets 2 s), or a higher `conf` for validation (0.01 instead of
0.001), or validate `best.pt` again separately afterwards.

**When it is only a note.** In the first epochs: a model that has not learned anything yet predicts boxes everywhere,
and that passes.

Sources: `ultralytics/utils/nms.py`; ultralytics#7225, ultralytics#14585, yolov5#7390.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from holdfast.diagnosis.rule import Case, Rule
from holdfast.schema import events
from holdfast.schema.verdicts import Finding
from holdfast.testing.histories import losses, started, trains
from holdfast.testing.signatures import on_mac, printed

if TYPE_CHECKING:
    from holdfast.diagnosis.run_state import RunState

ID = "nms-cut-short"
LIMITS = {"early_epochs": 3}


def judge(state: RunState) -> Finding | None:
    attempt = state.attempt
    line = attempt.printed.get(ID)
    if line is None:
        return None
    is_early = attempt.adapter is not None and (attempt.epoch or 0) <= state.get_limits(ID, LIMITS)["early_epochs"]
    return Finding(
        rule=ID,
        severity="note" if is_early else "warn",
        message="A validation was cut short: images that NMS did not reach count as empty, so its metrics are too low"
        + (", as is common in the first epochs." if is_early else ", and best.pt may be the wrong checkpoint."),
        evidence=[line.text, f"printed {line.count} time{'s' if line.count != 1 else ''}"],
        remedies=[
            "use a smaller validation batch: each batch gets 2 s",
            "use a higher threshold for validation: conf=0.01",
            "validate best.pt again afterwards: yolo val model=best.pt batch=1",
        ],
    )


def _make_epoch(number: int) -> list[events.AnyEvent]:
    return [
        events.Epoch(
            at=4.0, epoch=number, step=10 * number, seconds=10.0, batches=10, planned=100, source="ultralytics"
        )
    ]


_LINE = "WARNING ⚠️ NMS time limit 2.800s exceeded"

RULE = Rule(
    id=ID,
    kind="learning",
    on=(events.OutputMatched,),
    judge=judge,
    limits=LIMITS,
    page=__doc__ or "",
    words=(r"NMS time limit \d+\.\d+s exceeded",),
    cases=[
        Case("in epoch 20", [*started(), *trains(), *losses(1.0), *_make_epoch(20), *printed(ID, _LINE)], "warn"),
        Case("in a log without epochs", [*started(), *printed(ID, _LINE, stream="log")], "warn"),
        Case("in the first epoch", [*started(), *trains(), *losses(1.0), *_make_epoch(1), *printed(ID, _LINE)], "note"),
        Case(
            "a line that belongs to another rule",
            [*on_mac(), *printed("op-not-implemented", "... will fall back to run on the CPU")],
            None,
        ),
    ],
)

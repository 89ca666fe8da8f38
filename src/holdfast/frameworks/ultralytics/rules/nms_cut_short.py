"""Validation exceeded the time limit for NMS, so its metrics are too low.

**What it means.** Ultralytics printed `NMS time limit 2.800s exceeded`. It stops non-maximum suppression (NMS) after 2
s plus 0.05 s for each image of the batch, and the remaining images get no boxes at all. They are scored as if nothing
had been detected. Precision, recall and mAP of that validation are wrong, and `best.pt`, which is selected by them, may
be the wrong checkpoint.

**Why it happens.** Very many boxes are above the confidence threshold (an untrained model, many objects, or large
images), the device is slow, or the machine is busy with other work.

**What to do.** Use a smaller validation batch (each batch gets at least 2 s), or a higher `conf` for validation (0.01
instead of 0.001). Or validate `best.pt` again separately afterwards.

**Severity.** It is reported as a `note` in the first three epochs, because an untrained model temporarily
predicts boxes everywhere. Later, or if the epoch is unknown, it is reported as `warn`.

Sources: `ultralytics/utils/nms.py`; ultralytics#7225, ultralytics#14585, yolov5#7390.
"""

from __future__ import annotations

from holdfast.diagnosis.rule import Case, Finding, Rule, RunState
from holdfast.schema import events
from holdfast.testing.histories import losses, trains
from holdfast.testing.signatures import on_mac, printed

ID = "nms-cut-short"
LIMITS = {"early_epochs": 3}


def judge(state: RunState) -> Finding | None:
    attempt = state.attempt
    line = attempt.printed.get(ID)
    if line is None:
        return None
    is_early = attempt.framework is not None and (attempt.epoch or 0) <= state.get_limits(ID, LIMITS)["early_epochs"]
    return Finding(
        severity="note" if is_early else "warn",
        message="Validation was cut short: images that NMS did not reach are scored as empty, so the metrics are too low"
        + (", as is common in the first epochs." if is_early else ", and best.pt may be the wrong checkpoint."),
        evidence=[line.text, f"printed {line.count} time{'s' if line.count != 1 else ''}"],
        remedies=[
            "use a smaller validation batch: each batch gets at least 2 s",
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
    kind="learning",
    on=(events.OutputMatched,),
    judge=judge,
    limits=LIMITS,
    words=(r"NMS time limit \d+\.\d+s exceeded",),
    suspects_device=True,
    restarts_while_running=True,
    remedies=("validation-batch",),
    cases=lambda: [
        Case("in epoch 20", "warn", trains(), losses(1.0), _make_epoch(20), printed(ID, _LINE)),
        Case("in a log without epochs", "warn", printed(ID, _LINE, stream="log")),
        Case("in the first epoch", "note", trains(), losses(1.0), _make_epoch(1), printed(ID, _LINE)),
        Case(
            "a message that a different rule reports",
            None,
            on_mac(),
            printed("op-not-implemented", "... will fall back to run on the CPU"),
        ),
    ],
)

"""A validation ran out of the time that its box suppression has, so its metrics are too low.

**What it means.** `NMS time limit 2.800s exceeded`: Ultralytics stops suppressing boxes after 2 s and 0.05 s for each image of the
batch, and the images that were not reached get no boxes at all. They count as if nothing had been detected: precision,
recall and mAP of that validation are wrong, and so is the choice of `best.pt` by them.

**Why it happens.** Very many boxes above the confidence threshold (an early, untrained model; many objects; large images), a
slow device, a machine that is busy with something else.

**What to do.** A smaller validation batch (it gets 2 s each), a higher `conf` for validation (0.01 in place of 0.001), or
validate `best.pt` again by itself afterwards.

**When it is only a note.** In the first epochs: a model that knows nothing yet guesses everywhere, and that passes.

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
    early = attempt.adapter is not None and (attempt.epoch or 0) <= state.tuned(ID, LIMITS)["early_epochs"]
    return Finding(
        rule=ID,
        severity="note" if early else "warn",
        message="A validation was cut short: images that box suppression did not reach count as empty, so its metrics are "
        "too low" + (", as is common in the first epochs." if early else ", and best.pt may be the wrong one."),
        evidence=[line.text, f"said {line.count} time{'s' if line.count != 1 else ''}"],
        remedies=[
            "a smaller validation batch: each gets 2 s",
            "a higher threshold in validation: conf=0.01",
            "validate best.pt again afterwards, by itself: yolo val model=best.pt batch=1",
        ],
    )


def _epoch(number: int) -> list[events.AnyEvent]:
    return [
        events.Epoch(
            at=4.0, epoch=number, step=10 * number, seconds=10.0, batches=10, planned=100, source="ultralytics"
        )
    ]


_SAID = "WARNING ⚠️ NMS time limit 2.800s exceeded"

RULE = Rule(
    id=ID,
    kind="learning",
    on=(events.OutputMatched,),
    judge=judge,
    limits=LIMITS,
    page=__doc__ or "",
    words=(r"NMS time limit \d+\.\d+s exceeded",),
    cases=[
        Case("in epoch 20", [*started(), *trains(), *losses(1.0), *_epoch(20), *printed(ID, _SAID)], "warn"),
        Case("in a log that tells no epochs", [*started(), *printed(ID, _SAID, stream="log")], "warn"),
        Case("in the first epoch", [*started(), *trains(), *losses(1.0), *_epoch(1), *printed(ID, _SAID)], "note"),
        Case(
            "another rule's line",
            [*on_mac(), *printed("op-not-implemented", "... will fall back to run on the CPU")],
            None,
        ),
    ],
)

"""Ultralytics' label assigner met two selections of different length that must be equal.

**What it means.** `TaskAlignedAssigner` (`ultralytics/utils/tal.py`) selects boxes twice with one mask, and Apple's GPU
counted them differently: `shape mismatch: value tensor of shape [18876] cannot be broadcast to indexing result of shape
[35796]`. The step was lost; nothing of the model is damaged.

**Why it happens.** A boolean-index kernel of torch's MPS backend that is wrong now and then, when selections follow each
other quickly. It comes at random: on any dataset, sooner with many boxes in an image. Seen on M4 from December 2025 on.

**Where reports conclude wrongly.** "Rotation with mosaic causes it": mosaic and mixup raise the number of boxes, so that it
comes sooner; nothing implicates rotation. As it comes at random, one run with a setting and one without prove nothing:
bisecting it takes repeated trials of each.

**What to do.** Holdfast goes on from what was saved, and mostly that is enough. Install the newest torch and ultralytics;
have the assigner run on the CPU (the rest stays on the GPU); fewer boxes in an image (mosaic, mixup); last, `device=cpu`.

**When it stays silent.** The same message outside of `tal.py` is an exception like any other.

Sources: ultralytics#22971, ultralytics#23853, ultralytics#24200, pytorch#181867, pytorch#178497, pytorch#178079.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from holdfast.diagnosis.exits import describe_position, exception_words, find_failure, match_exception
from holdfast.diagnosis.rule import Case, Rule
from holdfast.diagnosis.versions import newest_torch, on_mps
from holdfast.schema import events
from holdfast.schema.verdicts import Finding
from holdfast.testing.histories import ended, losses, started, trains
from holdfast.testing.signatures import on_mac, raises, unknown_machine

if TYPE_CHECKING:
    from holdfast.diagnosis.run_state import RunState
    from holdfast.schema.verdicts import Confidence

_WORDS = (
    r"shape mismatch: value tensor of shape \[.*\] cannot be broadcast to indexing result of shape \[",
    r"The size of tensor a \(\d+\) must match the size of tensor b \(\d+\) at non-singleton dimension 0",
    r"index \d+ is out of bounds: 0, range 0 to \d+",
)
_CONFIDENCE: dict[bool | None, Confidence] = {True: "proven", None: "likely", False: "possible"}
_ASSIGNER = re.compile(r"ultralytics/utils/tal\.py")


def judge(state: RunState) -> Finding | None:
    gone = find_failure(state)
    words = match_exception(gone, *_WORDS) if gone is not None else None
    if gone is None or words is None:
        return None
    frame = next((line for line in exception_words(gone) if _ASSIGNER.search(line)), None)
    if frame is None:
        return None
    mps = on_mps(state)
    why = (
        "a kernel of Apple's GPU counts wrongly now and then; neither your data nor an augmentation is at fault"
        if mps is not False
        else "known of Apple's GPU, where a kernel counts wrongly now and then; this run is not known to use one"
    )
    return Finding(
        rule="assigner-shape-mismatch",
        severity="fatal",
        confidence=_CONFIDENCE[mps],
        message=f"The label assigner selected two different numbers of boxes {describe_position(state.attempt)}: {why}.",
        evidence=[words, frame.strip()],
        remedies=[
            "go on from the last checkpoint: it comes at random, and mostly passes",
            f"{newest_torch(state)}, and the newest ultralytics",
            "have the assigner alone run on the CPU; the rest stays on the GPU",
            "fewer boxes in an image make it rarer: mosaic=0.5 mixup=0",
            "train on the CPU: device=cpu",
        ],
    )


_FRAMES = (
    '"/venv/lib/python3.12/site-packages/ultralytics/engine/trainer.py", line 427, in _do_train',
    '"/venv/lib/python3.12/site-packages/ultralytics/utils/loss.py", line 356, in __call__',
    '"/venv/lib/python3.12/site-packages/ultralytics/utils/tal.py", line 198, in get_box_metrics',
)
_SAID = "RuntimeError: shape mismatch: value tensor of shape [18876] cannot be broadcast to indexing result of shape [35796]"

RULE = Rule(
    id="assigner-shape-mismatch",
    kind="exit",
    on=(events.AttemptEnded,),
    judge=judge,
    page=__doc__ or "",
    cause=50,
    cases=[
        Case("in epoch 2 on an M4", [*on_mac(), *losses(1.0), *raises(_SAID, through=_FRAMES)], "fatal"),
        Case(
            "the counts differ one line later, where the overlap is computed",
            [
                *on_mac(),
                *raises(
                    "RuntimeError: The size of tensor a (18876) must match the size of tensor b (35796) "
                    "at non-singleton dimension 0",
                    through=_FRAMES,
                ),
            ],
            "fatal",
        ),
        Case(
            "an index outside of its range, from the same kernel",
            [
                *on_mac(),
                *raises("torch.AcceleratorError: index 366 is out of bounds: 0, range 0 to 16", through=_FRAMES),
            ],
            "fatal",
        ),
        Case("from a log", [*unknown_machine(), *raises(_SAID, through=_FRAMES)], "fatal"),
        Case("the same message in somebody's own code", [*on_mac(), *raises(_SAID)], None),
        Case(
            "it was caught, printed and survived",
            [*on_mac(), *losses(1.0), *ended(0, words=["Traceback (most recent call last):", *_FRAMES, _SAID])],
            None,
        ),
        Case(
            "it was caught and printed; the end came from elsewhere",
            [
                *started(),
                *trains(),
                *ended(
                    1,
                    words=[
                        "Traceback (most recent call last):",
                        *(f"  File {frame}" for frame in _FRAMES),
                        _SAID,
                        "skipping this batch",
                        "Traceback (most recent call last):",
                        '  File "/home/ann/train.py", line 8, in <module>',
                        "KeyError: 'labels'",
                    ],
                ),
            ],
            None,
        ),
    ],
)

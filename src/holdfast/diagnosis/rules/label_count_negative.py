"""Ultralytics' loss counted a negative number of labels.

**What it means.** The loss lays out the labels of a batch by image, and asks the device how many each image has. The answer
was nonsense (9223372036854775807, as an int32 -1): `Trying to create tensor with negative dimension -1: [2, -1, 5]`.

**Why it happens.** `unique(return_counts=True)` on MPS, at random, in torch 2.3; seen on CUDA too. The labels are fine.

**What to do.** Install a newer torch and ultralytics. If it comes again: compare a few steps with the CPU, then train on the
CPU.

**When it stays silent.** A negative dimension anywhere else than in the preparation of labels is a mistake in the code.

Sources: ultralytics#12999, ultralytics#14658, ultralytics#7807, ultralytics/hub#591.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from holdfast.diagnosis.exits import describe_position, exception_words, find_failure, match_exception
from holdfast.diagnosis.rule import Case, Rule
from holdfast.diagnosis.versions import newest_torch
from holdfast.schema import events
from holdfast.schema.verdicts import Finding
from holdfast.testing.histories import losses
from holdfast.testing.signatures import on_mac, raises

if TYPE_CHECKING:
    from holdfast.diagnosis.run_state import RunState

_WORDS = r"Trying to create tensor with negative dimension -\d+"
_PREPROCESS = re.compile(r"ultralytics/utils/loss\.py\", line \d+, in preprocess")


def judge(state: RunState) -> Finding | None:
    gone = find_failure(state)
    words = match_exception(gone, _WORDS) if gone is not None else None
    if gone is None or words is None:
        return None
    frame = next((line for line in exception_words(gone) if _PREPROCESS.search(line)), None)
    if frame is None:
        return None
    return Finding(
        rule="label-count-negative",
        severity="fatal",
        confidence="likely",
        message=f"The device counted a negative number of labels {describe_position(state.attempt)}: its kernel is at fault, "
        "not the labels.",
        evidence=[words, frame.strip()],
        remedies=[
            "go on from the last checkpoint: it comes at random",
            f"{newest_torch(state)}, and the newest ultralytics",
            "if it comes again, train on the CPU: device=cpu",
        ],
    )


_FRAMES = ('"/venv/lib/python3.11/site-packages/ultralytics/utils/loss.py", line 181, in preprocess',)
_SAID = "RuntimeError: Trying to create tensor with negative dimension -1: [2, -1, 5]"

RULE = Rule(
    id="label-count-negative",
    kind="exit",
    on=(events.AttemptEnded,),
    judge=judge,
    page=__doc__ or "",
    cause=50,
    cases=[
        Case("torch 2.3 on an M3", [*on_mac("2.3.0", "14.3"), *losses(1.0), *raises(_SAID, through=_FRAMES)], "fatal"),
        Case("a mistake in the code", [*on_mac(), *raises(_SAID)], None),
        Case(
            "another exception in the same place",
            [*on_mac(), *raises("IndexError: index 3 is out of bounds", through=_FRAMES)],
            None,
        ),
    ],
)

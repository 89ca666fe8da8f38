"""Ultralytics' loss counted a negative number of labels.

**What it means.** The loss groups the labels of a batch by image, and computes on the device how many labels each image
has. The result was invalid (9223372036854775807, which is -1 as an int32), which raises `Trying to create tensor with
negative dimension -1: [2, -1, 5]`.

**Why it happens.** In torch 2.3, `unique(return_counts=True)` occasionally returns wrong counts on MPS; it has also
been reported on CUDA. The labels are correct.

**What to do.** Install a newer torch and ultralytics. If it happens again, run `holdfast check --only device --
COMMAND` to compare the device with the CPU, or train on the CPU (`device=cpu`).

**When it is not reported.** It is not reported if the negative dimension occurs anywhere other than in Ultralytics'
preparation of labels: that is a bug in your code.

Sources: ultralytics#12999, ultralytics#14658, ultralytics#7807, ultralytics/hub#591.
"""

from __future__ import annotations

import re

from holdfast.diagnosis.exits import describe_position, exception_words
from holdfast.diagnosis.rule import Case, Finding, RunState
from holdfast.diagnosis.signature import AttemptEnded, signature_rule
from holdfast.diagnosis.versions import newest_torch
from holdfast.testing.histories import losses
from holdfast.testing.signatures import on_mac, raises

_PATTERN = r"Trying to create tensor with negative dimension -\d+"
_PREPROCESS = re.compile(r"ultralytics/utils/loss\.py\", line \d+, in preprocess")


def _report(state: RunState, failure: AttemptEnded, error: str) -> Finding | None:
    frame = next((line for line in exception_words(failure) if _PREPROCESS.search(line)), None)
    if frame is None:
        return None
    return Finding(
        severity="fatal",
        confidence="likely",
        message=f"The device counted a negative number of labels {describe_position(state.attempt)}: the cause is a device "
        "kernel, not the labels.",
        evidence=[error, frame.strip()],
        remedies=[
            "resume from the last checkpoint: the failure is random",
            f"{newest_torch(state)}; update ultralytics too",
            "if it happens again, compare the device with the CPU (holdfast check --only device -- COMMAND), or train on the CPU: device=cpu",
        ],
    )


_FRAMES = ('"/venv/lib/python3.11/site-packages/ultralytics/utils/loss.py", line 181, in preprocess',)
_ERROR = "RuntimeError: Trying to create tensor with negative dimension -1: [2, -1, 5]"

RULE = signature_rule(
    _PATTERN,
    report=_report,
    cause=50,
    remedies=("as-it-is", "next-device"),
    cases=lambda: [
        Case("torch 2.3 on an M3", "fatal", on_mac("2.3.0", "14.3"), losses(1.0), raises(_ERROR, through=_FRAMES)),
        Case("a bug in user code", None, on_mac(), raises(_ERROR)),
        Case(
            "a different exception in the same place",
            None,
            on_mac(),
            raises("IndexError: index 3 is out of bounds", through=_FRAMES),
        ),
    ],
)

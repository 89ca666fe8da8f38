"""Ultralytics' label assigner failed with a shape mismatch, caused by a bug in PyTorch's MPS backend.

**What it means.** `TaskAlignedAssigner` (`ultralytics/utils/tal.py`) indexes boxes twice with the same boolean mask.
The Apple GPU returned a different number of boxes each time, which raises `shape mismatch: value tensor of shape
[18876] cannot be broadcast to indexing result of shape [35796]`. The step failed; the model is not damaged.

**Why it happens.** A boolean-indexing kernel of PyTorch's MPS backend occasionally returns a wrong result when indexing
operations run in quick succession. This happens at random, with any dataset, and is more likely with many boxes per
image. It has been reported on M4 Macs since December 2025.

**Common misdiagnoses.** Rotation combined with mosaic is sometimes blamed. There is no evidence for this: mosaic and
mixup only add boxes, which makes the failure more likely. Because the failure is random, comparing a single run with
and without a setting proves nothing; repeat each configuration several times.

**What to do.** Holdfast resumes from the last checkpoint, which is usually enough. If the failure recurs, try the
following in this order:

1. Upgrade torch and ultralytics.
2. Run only the assigner on the CPU: set `assigner = "cpu"` in the plan. Everything else stays on the GPU.
3. Lower `mosaic` and `mixup`, so that there are fewer boxes per image.
4. Train with `device=cpu`.

**When it is not reported.** If the same message is raised outside `tal.py`, it is reported as `python-exception`, like
any other exception.

Sources: ultralytics#22971, ultralytics#23853, ultralytics#24200, pytorch#181867, pytorch#178497, pytorch#178079.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from holdfast.diagnosis.exits import describe_position, exception_words
from holdfast.diagnosis.rule import Case, Finding, RunState
from holdfast.diagnosis.signature import AttemptEnded, signature_rule
from holdfast.diagnosis.versions import newest_torch, on_mps
from holdfast.testing.histories import ended, losses, trains
from holdfast.testing.signatures import on_mac, raises, unknown_machine

if TYPE_CHECKING:
    from holdfast.schema.verdicts import Confidence

_PATTERNS = (
    r"shape mismatch: value tensor of shape \[.*\] cannot be broadcast to indexing result of shape \[",
    r"The size of tensor a \(\d+\) must match the size of tensor b \(\d+\) at non-singleton dimension 0",
    r"index \d+ is out of bounds: 0, range 0 to \d+",
)
_CONFIDENCE: dict[bool | None, Confidence] = {True: "proven", None: "likely", False: "possible"}
_ASSIGNER = re.compile(r"ultralytics/utils/tal\.py")


def _report(state: RunState, failure: AttemptEnded, line: str) -> Finding | None:
    frame = next((text for text in exception_words(failure) if _ASSIGNER.search(text)), None)
    if frame is None:
        return None
    mps = on_mps(state)
    why = (
        "an MPS kernel occasionally returns a wrong count; neither your data nor an augmentation is the cause"
        if mps is not False
        else "this is a known bug of the Apple GPU (MPS), but this run does not seem to use one"
    )
    return Finding(
        severity="fatal",
        confidence=_CONFIDENCE[mps],
        message=f"The label assigner selected two different numbers of boxes {describe_position(state.attempt)}: {why}.",
        evidence=[line, frame.strip()],
        remedies=[
            "resume from the last checkpoint: the failure is random and usually does not recur",
            f"{newest_torch(state)}; update ultralytics too",
            'run only the assigner on the CPU (in a plan: assigner = "cpu"); the rest stays on the GPU',
            "use fewer boxes per image to make it less likely: mosaic=0.5 mixup=0",
            "train on the CPU: device=cpu",
        ],
    )


_FRAMES = (
    '"/venv/lib/python3.12/site-packages/ultralytics/engine/trainer.py", line 427, in _do_train',
    '"/venv/lib/python3.12/site-packages/ultralytics/utils/loss.py", line 356, in __call__',
    '"/venv/lib/python3.12/site-packages/ultralytics/utils/tal.py", line 198, in get_box_metrics',
)
_ERROR = "RuntimeError: shape mismatch: value tensor of shape [18876] cannot be broadcast to indexing result of shape [35796]"

RULE = signature_rule(
    *_PATTERNS,
    report=_report,
    cause=50,
    suspects_device=True,
    remedies=("as-it-is", "assigner-on-cpu", "less-mixup", "less-mosaic", "next-device"),
    cases=lambda: [
        Case("in epoch 2 on an M4", "fatal", on_mac(), losses(1.0), raises(_ERROR, through=_FRAMES)),
        Case(
            "the counts differ one line later, where the overlap is computed",
            "fatal",
            on_mac(),
            raises(
                "RuntimeError: The size of tensor a (18876) must match the size of tensor b (35796) "
                "at non-singleton dimension 0",
                through=_FRAMES,
            ),
        ),
        Case(
            "an index out of range, from the same kernel",
            "fatal",
            on_mac(),
            raises("torch.AcceleratorError: index 366 is out of bounds: 0, range 0 to 16", through=_FRAMES),
        ),
        Case("read from a log file of an unknown machine", "fatal", unknown_machine(), raises(_ERROR, through=_FRAMES)),
        Case("the same message raised in user code", None, on_mac(), raises(_ERROR)),
        Case(
            "caught and printed; the run succeeded",
            None,
            on_mac(),
            losses(1.0),
            ended(0, words=["Traceback (most recent call last):", *_FRAMES, _ERROR]),
        ),
        Case(
            "caught and printed; the run failed for another reason",
            None,
            trains(),
            ended(
                1,
                words=[
                    "Traceback (most recent call last):",
                    *(f"  File {frame}" for frame in _FRAMES),
                    _ERROR,
                    "skipping this batch",
                    "Traceback (most recent call last):",
                    '  File "/home/ann/train.py", line 8, in <module>',
                    "KeyError: 'labels'",
                ],
            ),
        ),
    ],
)

"""A backward pass on the Apple GPU cannot handle the memory layout of a gradient.

**What it means.** The error `view size is not compatible with input tensor's size and stride` was raised inside the
autograd engine, not by a `view()` call in your code. The MPS backward kernel of a layer expects a contiguous gradient,
but received a non-contiguous one.

**Why it happens.** In torch 2.5 to 2.7, this affects convolutions on channels-last or transposed input. Batch
normalization on channels-last input is affected in later versions as well. It happens in every run of the same model,
in the first backward pass.

**What to do.** Install the newest torch. Until then, call `.contiguous()` on the input of the layer, and do not use
`memory_format=torch.channels_last`.

**When it is not reported.** It is not reported if the traceback ends in a `view()` call in your own code (in that case,
follow the message and use `.reshape()`), or if the run is known not to use the Apple GPU.

Sources: pytorch#142344, pytorch#143196, pytorch#140902, pytorch#188371, ultralytics#17168.
"""

from __future__ import annotations

import re

from holdfast.diagnosis.exits import describe_position, exception_words
from holdfast.diagnosis.rule import Case, Finding, RunState
from holdfast.diagnosis.signature import AttemptEnded, signature_rule
from holdfast.diagnosis.versions import newer_torch, newest_torch, on_mps
from holdfast.testing.histories import trains
from holdfast.testing.signatures import on_mac, raises

_PATTERN = r"view size is not compatible with input tensor's size and stride"
_FRAME = re.compile(r"^\s*File \"")
_ENGINE = re.compile(r"torch/autograd/(?:graph|__init__)\.py\"")


def _report(state: RunState, failure: AttemptEnded, line: str) -> Finding | None:
    if on_mps(state) is False:
        return None
    frames = [text.strip() for text in exception_words(failure) if _FRAME.match(text)]
    if not frames or not _ENGINE.search(frames[-1]):
        return None
    return Finding(
        severity="fatal",
        confidence="proven" if on_mps(state) else "likely",
        message=f"The backward pass failed {describe_position(state.attempt)}: the MPS backward kernel of a layer "
        "expects a contiguous gradient, but received a non-contiguous one.",
        evidence=[line, frames[-1]],
        remedies=[
            newer_torch(state, (2, 8)) or newest_torch(state),
            "call .contiguous() on the input of convolutions that follow a transpose or permute",
            "do not use memory_format=torch.channels_last",
            "train on the CPU",
        ],
    )


_FRAMES = (
    '"/venv/lib/python3.11/site-packages/torch/_tensor.py", line 624, in backward',
    '"/venv/lib/python3.11/site-packages/torch/autograd/__init__.py", line 347, in backward',
    '"/venv/lib/python3.11/site-packages/torch/autograd/graph.py", line 825, in _engine_run_backward',
)
_ERROR = (
    "RuntimeError: view size is not compatible with input tensor's size and stride (at least one dimension spans across "
    "two contiguous subspaces). Use .reshape(...) instead."
)

RULE = signature_rule(
    _PATTERN,
    report=_report,
    cause=50,
    fails_again=True,
    remedies=("next-device",),
    cases=lambda: [
        Case(
            "torch 2.5 on a Mac, in the first backward pass",
            "fatal",
            on_mac("2.5.1"),
            raises(_ERROR, through=_FRAMES, last_step=0),
        ),
        Case(
            "a view in user code",
            None,
            on_mac("2.5.1"),
            raises(_ERROR, through=('"/home/ann/model.py", line 44, in forward',), last_step=0),
        ),
        Case("not on an Apple GPU", None, trains(), raises(_ERROR, through=_FRAMES)),
    ],
)

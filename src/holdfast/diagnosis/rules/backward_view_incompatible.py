"""A backward pass on the Apple GPU cannot handle the memory layout of a gradient.

**What it means.** `view size is not compatible with input tensor's size and stride`, raised inside the autograd engine
and not by a `view` in your code. The backward of a layer on MPS assumes that its gradient is contiguous, and it is not.

**Why it happens.** Convolutions on channels-last or transposed input in torch 2.5 to 2.7; batch normalization on
channels-last input in later versions too. It happens in every run of the same model, in the first backward pass.

**What to do.** Install the newest torch. Until then, call `.contiguous()` on the input of the layer and do not use
`memory_format=torch.channels_last`.

**When it stays silent.** If the traceback ends in a `view` in your own code (the advice `use .reshape` is right then),
or if the run is known not to use the Apple GPU.

Sources: pytorch#142344, pytorch#143196, pytorch#140902, pytorch#188371, ultralytics#17168.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from holdfast.diagnosis.exits import describe_position, exception_words, find_failure, match_exception
from holdfast.diagnosis.rule import Case, Rule
from holdfast.diagnosis.versions import newer_torch, newest_torch, on_mps
from holdfast.schema import events
from holdfast.schema.verdicts import Finding
from holdfast.testing.histories import started, trains
from holdfast.testing.signatures import on_mac, raises

if TYPE_CHECKING:
    from holdfast.diagnosis.run_state import RunState

_PATTERN = r"view size is not compatible with input tensor's size and stride"
_FRAME = re.compile(r"^\s*File \"")
_ENGINE = re.compile(r"torch/autograd/(?:graph|__init__)\.py\"")


def judge(state: RunState) -> Finding | None:
    failure = find_failure(state)
    line = match_exception(failure, _PATTERN) if failure is not None else None
    if failure is None or line is None or on_mps(state) is False:
        return None
    frames = [text.strip() for text in exception_words(failure) if _FRAME.match(text)]
    if not frames or not _ENGINE.search(frames[-1]):
        return None
    return Finding(
        rule="backward-view-incompatible",
        severity="fatal",
        confidence="proven" if on_mps(state) else "likely",
        message=f"The backward pass failed {describe_position(state.attempt)}: the backward of a layer on the Apple GPU (MPS) cannot "
        "handle the memory layout of its gradient.",
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

RULE = Rule(
    id="backward-view-incompatible",
    kind="exit",
    on=(events.AttemptEnded,),
    judge=judge,
    page=__doc__ or "",
    cause=50,
    cases=[
        Case(
            "torch 2.5 on a Mac, in the first backward pass",
            [*on_mac("2.5.1"), *raises(_ERROR, through=_FRAMES, last_step=0)],
            "fatal",
        ),
        Case(
            "a view in user code",
            [*on_mac("2.5.1"), *raises(_ERROR, through=('"/home/ann/model.py", line 44, in forward',), last_step=0)],
            None,
        ),
        Case("not on an Apple GPU", [*started(), *trains(), *raises(_ERROR, through=_FRAMES)], None),
    ],
)

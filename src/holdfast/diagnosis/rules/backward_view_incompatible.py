"""A backward pass on Apple's GPU cannot view a gradient the way it wants to.

**What it means.** `view size is not compatible with input tensor's size and stride`, raised inside of autograd's own engine:
no `view` of yours is meant. A layer's backward on MPS takes its gradient for contiguous, and it is not.

**Why it happens.** Convolutions on channels-last or transposed input, torch 2.5 to 2.7; batch normalisation on channels-last
input in later versions too. It comes with every run of the same model, at its first backward.

**What to do.** Install the newest torch. Until then: `.contiguous()` on the input of the layer, and no
`memory_format=torch.channels_last`.

**When it stays silent.** Where the traceback ends in somebody's own `view` (it says `use .reshape` and is right), or where the
run is known not to use Apple's GPU.

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

_WORDS = r"view size is not compatible with input tensor's size and stride"
_FRAME = re.compile(r"^\s*File \"")
_ENGINE = re.compile(r"torch/autograd/(?:graph|__init__)\.py\"")


def judge(state: RunState) -> Finding | None:
    gone = find_failure(state)
    words = match_exception(gone, _WORDS) if gone is not None else None
    if gone is None or words is None or on_mps(state) is False:
        return None
    frames = [line.strip() for line in exception_words(gone) if _FRAME.match(line)]
    if not frames or not _ENGINE.search(frames[-1]):
        return None
    return Finding(
        rule="backward-view-incompatible",
        severity="fatal",
        confidence="proven" if on_mps(state) else "likely",
        message=f"The backward pass failed {describe_position(state.attempt)}: a layer's backward on Apple's GPU cannot handle the "
        "memory layout of its gradient.",
        evidence=[words, frames[-1]],
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
_SAID = (
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
            "torch 2.5 on a Mac, at the first backward",
            [*on_mac("2.5.1"), *raises(_SAID, through=_FRAMES, last_step=0)],
            "fatal",
        ),
        Case(
            "somebody's own view",
            [*on_mac("2.5.1"), *raises(_SAID, through=('"/home/ann/model.py", line 44, in forward',), last_step=0)],
            None,
        ),
        Case("not on Apple's GPU", [*started(), *trains(), *raises(_SAID, through=_FRAMES)], None),
    ],
)

"""torchvision was built for another torch.

**What it means.** `operator torchvision::nms does not exist`, or `Couldn't load custom C++ ops`: torchvision's compiled part was
not loaded. Everything works until its first operator is needed, with detectors in the first validation.

**Why it happens.** torch and torchvision were installed from different sources or at different times: the usual torchvision
for Linux beside a CPU build of torch, a torch that was upgraded alone, a CPU torchvision beside a CUDA torch.

**What to do.** Install both together, from the same place, in versions that belong together (torch 2.9 and torchvision 0.24).
Where no such wheel can be had, a detector's NMS can be done by torch alone: Holdfast does so in the trainings that it starts, but not
with `--observe-only`.

It comes with every run: another attempt before this is mended fails the same way.

Sources: pytorch/vision#9077, pytorch/vision#8289, pytorch/vision#6725, ultralytics#20311.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from holdfast.diagnosis.exits import describe_position, find_failure, match_exception
from holdfast.diagnosis.rule import Case, Rule
from holdfast.diagnosis.versions import format_version, torchvision_for, versions_of
from holdfast.schema import events
from holdfast.schema.verdicts import Finding
from holdfast.testing.histories import ended, losses, started, trains
from holdfast.testing.signatures import raises

if TYPE_CHECKING:
    from holdfast.diagnosis.run_state import RunState

_WORDS = (
    r"operator torchvision::\w+ does not exist",
    r"(?:No such operator|Could not find the operator) torchvision::\w+",
    r"Couldn't load custom C\+\+ ops",
    r"Could not run 'torchvision::\w+' with arguments from the '\w+' backend",
)

MENDED = "run it without --observe-only: Holdfast then does nms in plain torch, and the rest of torchvision loads"


def judge(state: RunState) -> Finding | None:
    gone = find_failure(state)
    words = match_exception(gone, *_WORDS) if gone is not None else None
    if words is None:
        return None
    return Finding(
        rule="torchvision-mismatch",
        severity="fatal",
        message=f"torchvision's compiled operators are missing {describe_position(state.attempt)}: it was built for another torch.",
        evidence=[words],
        remedies=[
            *([MENDED] if _would_be_mended(state, words) else []),
            f"install both together, from the same place{_twins(state)}: pip install -U torch torchvision",
            "for a CPU build of torch, take torchvision from the same CPU index",
        ],
    )


def _would_be_mended(state: RunState, words: str) -> bool:
    """Holdfast stands in for `nms` alone, and not where it may change nothing."""
    named = re.search(r"torchvision::(\w+)", words)
    only_watched = state.started is not None and state.started.observe_only
    return only_watched and (named is None or named[1] in ("nms", "qnms"))


def _twins(state: RunState) -> str:
    torch = versions_of(state).torch
    twin = torchvision_for(torch)
    if torch is None or twin is None:
        return ""
    return f" (torch {format_version(torch[:2])} belongs with torchvision {format_version(twin)})"


_LOADED = (
    "RuntimeError: Couldn't load custom C++ ops. This can happen if your PyTorch and torchvision versions are incompatible, "
    "or if you had errors while compiling torchvision from source."
)

RULE = Rule(
    id="torchvision-mismatch",
    kind="exit",
    on=(events.AttemptEnded,),
    judge=judge,
    page=__doc__ or "",
    cause=50,
    cases=[
        Case(
            "on import",
            [*started(), *raises("RuntimeError: operator torchvision::nms does not exist", last_step=0)],
            "fatal",
        ),
        Case("in the first validation", [*started(), *trains(), *losses(1.0), *raises(_LOADED)], "fatal"),
        Case(
            "a torchvision without CUDA",
            [
                *started(),
                *raises(
                    "NotImplementedError: Could not run 'torchvision::nms' with arguments from the 'CUDA' backend. This "
                    "could be because the operator doesn't exist for this backend"
                ),
            ],
            "fatal",
        ),
        Case(
            "a warning about it in a run that needs no operator",
            [*started(), *ended(0, words=[f"UserWarning: {_LOADED}"])],
            None,
        ),
        Case("torchvision's own exception", [*started(), *raises("ValueError: torchvision transform v3")], None),
    ],
)

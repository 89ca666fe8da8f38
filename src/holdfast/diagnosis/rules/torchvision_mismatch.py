"""torchvision was built for a different version of torch.

**What it means.** The compiled part of torchvision was not loaded, which raises `operator torchvision::nms does not
exist` or `Couldn't load custom C++ ops`. Everything works until the first of its operators is needed. For detectors,
that is in the first validation. Every run fails in the same way until this is fixed.

**Why it happens.** torch and torchvision were installed from different sources or at different times. Examples are the
default torchvision for Linux with a CPU build of torch, a torch that was upgraded alone, or a CPU build of torchvision
with a CUDA build of torch.

**What to do.** Install both together, from the same source, in matching versions (for example, torch 2.9 with
torchvision 0.24). If no such wheel is available, torch alone can compute the NMS of a detector. Holdfast does this in
the runs that it starts, except with `--observe-only`.

**Severity.** It is always reported as `fatal`.

Sources: pytorch/vision#9077, pytorch/vision#8289, pytorch/vision#6725, ultralytics#20311.
"""

from __future__ import annotations

import re

from holdfast.diagnosis.exits import describe_position
from holdfast.diagnosis.rule import Case, Finding, RunState
from holdfast.diagnosis.signature import AttemptEnded, signature_rule
from holdfast.diagnosis.versions import format_version, torchvision_for, versions_of
from holdfast.testing.histories import ended, losses, trains
from holdfast.testing.signatures import raises

_WORDS = (
    r"operator torchvision::\w+ does not exist",
    r"(?:No such operator|Could not find the operator) torchvision::\w+",
    r"Couldn't load custom C\+\+ ops",
    r"Could not run 'torchvision::\w+' with arguments from the '\w+' backend",
)

WORKAROUND = "run it without --observe-only: Holdfast then computes nms in plain torch, and the rest of torchvision can be imported"


def _report(state: RunState, _end: AttemptEnded, words: str) -> Finding | None:
    return Finding(
        severity="fatal",
        message=f"torchvision's compiled operators are missing {describe_position(state.attempt)}: it was built for a different version of torch.",
        evidence=[words],
        remedies=[
            *([WORKAROUND] if _has_workaround(state, words) else []),
            f"install both together, from the same source{_describe_matching_versions(state)}: pip install -U torch torchvision",
            "for a CPU build of torch, install torchvision from the same CPU index",
        ],
    )


def _has_workaround(state: RunState, words: str) -> bool:
    """Return whether Holdfast could replace the operator: it replaces only `nms`, and not with --observe-only."""
    operator = re.search(r"torchvision::(\w+)", words)
    observe_only = state.started is not None and state.started.observe_only
    return observe_only and (operator is None or operator[1] in ("nms", "qnms"))


def _describe_matching_versions(state: RunState) -> str:
    torch = versions_of(state).torch
    torchvision = torchvision_for(torch)
    if torch is None or torchvision is None:
        return ""
    return f" (torch {format_version(torch[:2])} needs torchvision {format_version(torchvision)})"


_NOT_LOADED = (
    "RuntimeError: Couldn't load custom C++ ops. This can happen if your PyTorch and torchvision versions are incompatible, "
    "or if you had errors while compiling torchvision from source."
)

RULE = signature_rule(
    *_WORDS,
    report=_report,
    cause=50,
    fails_again=True,
    cases=lambda: [
        Case("on import", "fatal", raises("RuntimeError: operator torchvision::nms does not exist", last_step=0)),
        Case("in the first validation", "fatal", trains(), losses(1.0), raises(_NOT_LOADED)),
        Case(
            "a torchvision without CUDA",
            "fatal",
            raises(
                "NotImplementedError: Could not run 'torchvision::nms' with arguments from the 'CUDA' backend. This "
                "could be because the operator doesn't exist for this backend"
            ),
        ),
        Case(
            "a warning about it in a run that does not need the operators",
            None,
            ended(0, words=[f"UserWarning: {_NOT_LOADED}"]),
        ),
        Case("torchvision's own exception", None, raises("ValueError: torchvision transform v3")),
    ],
)

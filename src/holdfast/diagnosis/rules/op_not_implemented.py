"""The device does not know an operator that the model uses.

**What it means.** `NotImplementedError: The operator 'aten::...' is not currently implemented for the MPS device`. It comes
with every run of the same code, wherever that operator is first used: in the first step, or hours later in the first
validation.

**Why it happens.** torch's MPS backend has no kernel for it in this version.

**What to do.** Install a newer torch: kernels are added in every release. Else set `PYTORCH_ENABLE_MPS_FALLBACK=1` before torch
is imported: that operator then runs on the CPU, with copies both ways, and slows down each step that uses it. Mixing both
devices also makes other faults of MPS likelier (`command-buffer-reused`): prefer another operator where there is one.

**A note** is made where the fallback is on and torch says so (`will fall back to run on the CPU`).

Sources: pytorch#77764, pytorch#108996.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from holdfast.diagnosis.exits import describe_position, find_failure, match_exception
from holdfast.diagnosis.rule import Case, Rule
from holdfast.diagnosis.versions import newest_torch
from holdfast.schema import events
from holdfast.schema.verdicts import Finding
from holdfast.testing.histories import ended, losses
from holdfast.testing.signatures import on_mac, printed, raises

if TYPE_CHECKING:
    from holdfast.diagnosis.run_state import RunState

_WORDS = (
    r"is not currently implemented for the MPS device",
    r"Could not run 'aten::\w+(?:\.\w+)?' with arguments from the 'MPS' backend",
)
FALLBACK = r"will fall back to run on the CPU"
_OPERATOR = re.compile(r"'(aten::[\w.]+)'")


def judge(state: RunState) -> Finding | None:
    gone = find_failure(state)
    words = match_exception(gone, *_WORDS) if gone is not None else None
    if words is not None:
        return _missing(state, words)
    line = state.attempt.printed.get("op-not-implemented")
    return _fallen_back(line.text) if line is not None else None


def _missing(state: RunState, words: str) -> Finding:
    operator = _operator_in(words)
    return Finding(
        rule="op-not-implemented",
        severity="fatal",
        message=f"The model uses {operator}, which this torch does not have for Apple's GPU {describe_position(state.attempt)}.",
        evidence=[words],
        remedies=[
            f"{newest_torch(state)}: newer ones know more operators",
            "export PYTORCH_ENABLE_MPS_FALLBACK=1 before the start: this operator then runs on the CPU, slowly",
            "use another operator in its place",
            "train on the CPU",
        ],
    )


def _fallen_back(text: str) -> Finding:
    operator = _operator_in(text)
    return Finding(
        rule="op-not-implemented",
        severity="note",
        message=f"{operator} runs on the CPU, because this torch does not have it for Apple's GPU: steps that use it are "
        "slower.",
        evidence=[text],
        remedies=["install the newest torch, or use another operator in its place"],
    )


def _operator_in(text: str) -> str:
    found = _OPERATOR.search(text)
    return found[1] if found else "an operator"


_SAID = (
    "NotImplementedError: The operator 'aten::upsample_bicubic2d.out' is not currently implemented for the MPS device. If you "
    "want this op to be added in priority during the prototype phase of this feature, please comment on "
    "https://github.com/pytorch/pytorch/issues/77764. As a temporary fix, you can set the environment variable "
    "`PYTORCH_ENABLE_MPS_FALLBACK=1` to use the CPU as a fallback for this op."
)
_FELL = (
    "UserWarning: The operator 'aten::nonzero' is not currently supported on the MPS backend and will fall back to run on "
    "the CPU. This may have performance implications."
)

RULE = Rule(
    id="op-not-implemented",
    kind="exit",
    on=(events.AttemptEnded, events.OutputMatched),
    judge=judge,
    page=__doc__ or "",
    words=(FALLBACK,),
    cause=50,
    cases=[
        Case("before the first step", [*on_mac(), *raises(_SAID, last_step=0)], "fatal"),
        Case(
            "as torch says it without a kernel for the layout",
            [
                *on_mac(),
                *raises("NotImplementedError: Could not run 'aten::_foo.out' with arguments from the 'MPS' backend."),
            ],
            "fatal",
        ),
        Case("the fallback is on", [*on_mac(), *losses(1.0), *printed("op-not-implemented", _FELL)], "note"),
        Case("it was caught, and the run went well", [*on_mac(), *losses(1.0), *ended(0, words=[_SAID])], None),
        Case("another NotImplementedError", [*on_mac(), *raises("NotImplementedError: override this method")], None),
    ],
)

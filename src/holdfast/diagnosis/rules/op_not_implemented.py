"""The device does not support an operator that the model uses.

**What it means.** torch raised `NotImplementedError: The operator 'aten::...' is not currently implemented for the MPS
device`. Every run of the same code fails at the first use of that operator, in the first step or hours later in the
first validation.

**Why it happens.** The MPS backend of this torch version has no kernel for the operator.

**What to do.** Install a newer torch: every release adds kernels. Otherwise set `PYTORCH_ENABLE_MPS_FALLBACK=1` before
torch is imported. The operator then runs on the CPU, with copies in both directions, which slows down each step that
uses it. Mixing both devices also makes other MPS errors more likely (see command-buffer-reused), so use a different
operator if there is one.

**Severity.** The exception is reported as `fatal`. If the fallback is enabled and torch prints that it is used (`will
fall back to run on the CPU`), this is reported as a `note`.

Sources: pytorch#77764, pytorch#108996.
"""

from __future__ import annotations

import re

from holdfast.diagnosis.exits import describe_position, find_failure, match_exception
from holdfast.diagnosis.rule import Case, Finding, Rule, RunState
from holdfast.diagnosis.versions import newest_torch
from holdfast.schema import events
from holdfast.testing.histories import ended, losses
from holdfast.testing.signatures import on_mac, printed, raises

_WORDS = (
    r"is not currently implemented for the MPS device",
    r"Could not run 'aten::\w+(?:\.\w+)?' with arguments from the 'MPS' backend",
)
FALLBACK = r"will fall back to run on the CPU"
_OPERATOR = re.compile(r"'(aten::[\w.]+)'")


def judge(state: RunState) -> Finding | None:
    end = find_failure(state)
    words = match_exception(end, *_WORDS) if end is not None else None
    if words is not None:
        return _report_missing(state, words)
    line = state.attempt.printed.get("op-not-implemented")
    return _report_fallback(line.text) if line is not None else None


def _report_missing(state: RunState, words: str) -> Finding:
    operator = _find_operator(words)
    return Finding(
        severity="fatal",
        message=f"The run failed {describe_position(state.attempt)}: this version of torch does not implement {operator} for the Apple GPU.",
        evidence=[words],
        remedies=[
            f"{newest_torch(state)}; newer versions implement more operators",
            "export PYTORCH_ENABLE_MPS_FALLBACK=1 before the start: this operator then runs on the CPU, slowly",
            "use a different operator",
            "train on the CPU",
        ],
    )


def _report_fallback(text: str) -> Finding:
    operator = _find_operator(text)
    return Finding(
        severity="note",
        message=f"{operator} runs on the CPU because this version of torch does not implement it for the Apple GPU: steps that use it "
        "are slower.",
        evidence=[text],
        remedies=["install the newest torch, or use a different operator"],
    )


def _find_operator(text: str) -> str:
    match = _OPERATOR.search(text)
    return match[1] if match else "an operator"


_MESSAGE = (
    "NotImplementedError: The operator 'aten::upsample_bicubic2d.out' is not currently implemented for the MPS device. If you "
    "want this op to be added in priority during the prototype phase of this feature, please comment on "
    "https://github.com/pytorch/pytorch/issues/77764. As a temporary fix, you can set the environment variable "
    "`PYTORCH_ENABLE_MPS_FALLBACK=1` to use the CPU as a fallback for this op."
)
_WARNING = (
    "UserWarning: The operator 'aten::nonzero' is not currently supported on the MPS backend and will fall back to run on "
    "the CPU. This may have performance implications."
)

RULE = Rule(
    kind="exit",
    on=(events.AttemptEnded, events.OutputMatched),
    judge=judge,
    words=(FALLBACK,),
    cause=50,
    fails_again=True,
    remedies=("mps-fallback", "next-device"),
    cases=lambda: [
        Case("before the first step", "fatal", on_mac(), raises(_MESSAGE, last_step=0)),
        Case(
            "torch's message if there is no kernel for the layout",
            "fatal",
            on_mac(),
            raises("NotImplementedError: Could not run 'aten::_foo.out' with arguments from the 'MPS' backend."),
        ),
        Case("the fallback is on", "note", on_mac(), losses(1.0), printed("op-not-implemented", _WARNING)),
        Case("the exception was caught and the run succeeded", None, on_mac(), losses(1.0), ended(0, words=[_MESSAGE])),
        Case("a different NotImplementedError", None, on_mac(), raises("NotImplementedError: override this method")),
    ],
)

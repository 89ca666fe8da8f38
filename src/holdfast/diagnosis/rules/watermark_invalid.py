"""The two memory limits for MPS contradict each other.

**What it means.** torch raised `RuntimeError: invalid low watermark ratio 1.4`. torch starts to free memory at the low
watermark and refuses allocations at the high watermark. The low ratio must not exceed the high ratio, and its default
is 1.4.

**Why it happens.** `PYTORCH_MPS_HIGH_WATERMARK_RATIO` was set below 1.4, and `PYTORCH_MPS_LOW_WATERMARK_RATIO` was not
set.

**Common misdiagnoses.** Unsetting the variable or setting it to 0.0 removes the error, but also the protection. The
default high watermark is 1.7 times the recommended working set, which exceeds the physical memory of many Macs; the
system then swaps or kills the process instead.

**What to do.** Set both variables, the low ratio below the high one. For example, set
`PYTORCH_MPS_HIGH_WATERMARK_RATIO=1.0` and `PYTORCH_MPS_LOW_WATERMARK_RATIO=0.9`.

**Severity.** It is always reported as `fatal`.

Sources: kohya-ss/sd-scripts#603; torch's `MPSAllocator.mm`.
"""

from __future__ import annotations

import re

from holdfast.diagnosis.rule import Case, Finding, RunState
from holdfast.diagnosis.signature import AttemptEnded, signature_rule
from holdfast.testing.histories import ended
from holdfast.testing.signatures import on_mac, raises

_WORDS = r"invalid (?:low|high) watermark ratio ([\d.]+)"
HIGH, LOW = "PYTORCH_MPS_HIGH_WATERMARK_RATIO", "PYTORCH_MPS_LOW_WATERMARK_RATIO"


def _report(state: RunState, _end: AttemptEnded, words: str) -> Finding | None:
    match = re.search(_WORDS, words)
    environment = state.started.environment if state.started is not None else {}
    settings = [f"{name}={environment[name]}" for name in (HIGH, LOW) if name in environment]
    high = _parse_ratio(environment.get(HIGH))
    both = f"{HIGH}={high:g} {LOW}={max(0.0, high - 0.1):g}" if high else f"{HIGH}=1.0 {LOW}=0.9"
    return Finding(
        severity="fatal",
        message=f"torch rejects the memory limits for MPS: {match[1] if match else 'a ratio'} is out of range"
        + (f" ({', '.join(settings)})." if settings else "."),
        evidence=[words, *settings],
        remedies=[
            f"set both variables, the low ratio below the high one: export {both}",
            "or set neither: the defaults are 1.7 (high) and 1.4 (low)",
        ],
    )


def _parse_ratio(text: str | None) -> float | None:
    try:
        return float(text) if text else None
    except ValueError:
        return None


_MESSAGE = "RuntimeError: invalid low watermark ratio 1.4"

RULE = signature_rule(
    _WORDS,
    report=_report,
    cause=50,
    fails_again=True,
    remedies=("both-watermarks",),
    cases=lambda: [
        Case("only the high ratio was set", "fatal", on_mac(environment={HIGH: "0.7"}), raises(_MESSAGE, last_step=0)),
        Case("the ratio is set in the script itself", "fatal", on_mac(), raises(_MESSAGE, last_step=0)),
        Case(
            "the message was printed and the command succeeded",
            None,
            on_mac(),
            ended(0, words=[f"ignored: {_MESSAGE}"]),
        ),
    ],
)

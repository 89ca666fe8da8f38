"""The two limits of MPS memory contradict each other.

**What it means.** `RuntimeError: invalid low watermark ratio 1.4`. torch frees memory from the low mark on and refuses it from
the high mark on. The low one must not be above the high one, and its default is 1.4.

**Why it happens.** `PYTORCH_MPS_HIGH_WATERMARK_RATIO` was set below 1.4, and `PYTORCH_MPS_LOW_WATERMARK_RATIO` was not set.

**Where reports conclude wrongly.** "Remove the variable" and "set it to 0.0" both make the message go away, and take the
protection away with it: the default high mark of 1.7 is above what many Macs have, so that the system swaps or kills instead.

**What to do.** Set both, the low one below the high one.

Sources: kohya-ss/sd-scripts#603; torch's `MPSAllocator.mm`.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from holdfast.diagnosis.exits import find_failure, match_exception
from holdfast.diagnosis.rule import Case, Rule
from holdfast.schema import events
from holdfast.schema.verdicts import Finding
from holdfast.testing.histories import ended
from holdfast.testing.signatures import on_mac, raises

if TYPE_CHECKING:
    from holdfast.diagnosis.run_state import RunState

_WORDS = r"invalid (?:low|high) watermark ratio ([\d.]+)"
HIGH, LOW = "PYTORCH_MPS_HIGH_WATERMARK_RATIO", "PYTORCH_MPS_LOW_WATERMARK_RATIO"


def judge(state: RunState) -> Finding | None:
    gone = find_failure(state)
    words = match_exception(gone, _WORDS) if gone is not None else None
    if words is None:
        return None
    found = re.search(_WORDS, words)
    environment = state.started.environment if state.started is not None else {}
    given = [f"{name}={environment[name]}" for name in (HIGH, LOW) if name in environment]
    high = _ratio(environment.get(HIGH))
    both = f"{HIGH}={high:g} {LOW}={max(0.0, high - 0.1):g}" if high else f"{HIGH}=1.0 {LOW}=0.9"
    return Finding(
        rule="watermark-invalid",
        severity="fatal",
        message=f"torch refuses the limits that are set for MPS memory: {found[1] if found else 'one'} is not between them"
        + (f" ({', '.join(given)})." if given else "."),
        evidence=[words, *given],
        remedies=[
            f"set both, the low one below the high one: export {both}",
            "or set neither: the defaults are 1.7 and 1.4",
        ],
    )


def _ratio(text: str | None) -> float | None:
    try:
        return float(text) if text else None
    except ValueError:
        return None


_SAID = "RuntimeError: invalid low watermark ratio 1.4"

RULE = Rule(
    id="watermark-invalid",
    kind="exit",
    on=(events.AttemptEnded,),
    judge=judge,
    page=__doc__ or "",
    cause=50,
    cases=[
        Case("only the high one was set", [*on_mac(environment={HIGH: "0.7"}), *raises(_SAID, last_step=0)], "fatal"),
        Case("it is set in the script itself", [*on_mac(), *raises(_SAID, last_step=0)], "fatal"),
        Case("it was said in passing", [*on_mac(), *ended(0, words=[f"ignored: {_SAID}"])], None),
    ],
)

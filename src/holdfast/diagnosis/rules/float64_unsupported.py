"""A float64 tensor was to be moved to Apple's GPU, which has no such numbers.

**What it means.** `TypeError: Cannot convert a MPS Tensor to float64 dtype as the MPS framework doesn't support float64`. By
design, in every version; it comes with every run of the same code.

**Why it happens.** NumPy makes float64 unless told otherwise, and `torch.from_numpy` keeps it; `torch.tensor([0.5]).double()`;
a gradient scaler (its scale is float64 in some versions); a library that computes in float64.

**What to do.** Make it float32 before it goes to the device: `array.astype("float32")`, `tensor.float()`. Switch the gradient
scaler off: MPS needs none.

Sources: pytorch#122602.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from holdfast.diagnosis.exits import describe_position, exception_words, find_failure, match_exception
from holdfast.diagnosis.rule import Case, Rule
from holdfast.schema import events
from holdfast.schema.verdicts import Finding
from holdfast.testing.histories import ended
from holdfast.testing.signatures import on_mac, raises

if TYPE_CHECKING:
    from holdfast.diagnosis.run_state import RunState

_WORDS = r"Cannot convert a MPS Tensor to float64"


def judge(state: RunState) -> Finding | None:
    gone = find_failure(state)
    words = match_exception(gone, _WORDS) if gone is not None else None
    if gone is None or words is None:
        return None
    lines = exception_words(gone)
    frames = [line.strip() for line in lines if line.lstrip().startswith('File "')]
    scaler = ["no gradient scaler: MPS needs none (GradScaler(enabled=False))"]
    scaled = any("grad_scaler" in line or "GradScaler" in line for line in lines)
    return Finding(
        rule="float64-unsupported",
        severity="fatal",
        message=f"A float64 tensor was to go to Apple's GPU, which knows float32 at most, {describe_position(state.attempt)}.",
        evidence=[words, *frames[-1:]],
        remedies=[
            *(scaler if scaled else []),
            'make it float32 first: tensor.float(), array.astype("float32")',
            *([] if scaled else scaler),
            "keep on the CPU what needs float64",
        ],
    )


_SAID = (
    "TypeError: Cannot convert a MPS Tensor to float64 dtype as the MPS framework doesn't support float64. "
    "Please use float32 instead."
)

RULE = Rule(
    id="float64-unsupported",
    kind="exit",
    on=(events.AttemptEnded,),
    judge=judge,
    page=__doc__ or "",
    cause=50,
    cases=[
        Case("an array from NumPy", [*on_mac(), *raises(_SAID, last_step=0)], "fatal"),
        Case(
            "an exception of C++ that nobody caught",
            [
                *on_mac(),
                *ended(
                    signal="SIGABRT",
                    words=[f"libc++abi: terminating with uncaught exception of type c10::TypeError: {_SAID[11:]}"],
                ),
            ],
            "fatal",
        ),
        Case(
            "a library caught it and went on", [*on_mac(), *ended(0, words=[f"Skipping clip.wav due to {_SAID}"])], None
        ),
        Case("another TypeError", [*on_mac(), *raises("TypeError: unsupported operand type(s)")], None),
    ],
)

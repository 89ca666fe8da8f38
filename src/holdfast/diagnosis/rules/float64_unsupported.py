"""A float64 tensor was moved to the Apple GPU, which does not support float64.

**What it means.** PyTorch raised `TypeError: Cannot convert a MPS Tensor to float64 dtype as the MPS framework doesn't
support float64`. No version of the MPS backend supports float64, so the same code always fails.

**Why it happens.** NumPy creates float64 arrays by default, and `torch.from_numpy` keeps the dtype. Other causes are
`torch.tensor([0.5]).double()`, a gradient scaler (its scale is float64 in some versions), or a library that computes in
float64.

**What to do.** Convert to float32 before moving data to the device: `array.astype("float32")` or `tensor.float()`.
Disable the gradient scaler, which is not needed on MPS.

Sources: pytorch#122602.
"""

from __future__ import annotations

from holdfast.diagnosis.exits import describe_position, exception_words
from holdfast.diagnosis.rule import Case, Finding, RunState
from holdfast.diagnosis.signature import AttemptEnded, signature_rule
from holdfast.testing.histories import ended
from holdfast.testing.signatures import on_mac, raises

_PATTERN = r"Cannot convert a MPS Tensor to float64"


def _report(state: RunState, failure: AttemptEnded, error: str) -> Finding | None:
    lines = exception_words(failure)
    frames = [line.strip() for line in lines if line.lstrip().startswith('File "')]
    scaler = ["disable the gradient scaler: MPS does not need one (GradScaler(enabled=False))"]
    scaled = any("grad_scaler" in line or "GradScaler" in line for line in lines)
    return Finding(
        severity="fatal",
        message=f"A float64 tensor was moved to the Apple GPU, which does not support float64, {describe_position(state.attempt)}.",
        evidence=[error, *frames[-1:]],
        remedies=[
            *(scaler if scaled else []),
            'convert to float32 first: tensor.float(), array.astype("float32")',
            *([] if scaled else scaler),
            "keep computations that need float64 on the CPU",
        ],
    )


_ERROR = (
    "TypeError: Cannot convert a MPS Tensor to float64 dtype as the MPS framework doesn't support float64. "
    "Please use float32 instead."
)

RULE = signature_rule(
    _PATTERN,
    report=_report,
    cause=50,
    fails_again=True,
    remedies=("without-scaler", "next-device"),
    cases=lambda: [
        Case("a NumPy array", "fatal", on_mac(), raises(_ERROR, last_step=0)),
        Case(
            "an uncaught C++ exception",
            "fatal",
            on_mac(),
            ended(
                signal="SIGABRT",
                words=[f"libc++abi: terminating with uncaught exception of type c10::TypeError: {_ERROR[11:]}"],
            ),
        ),
        Case(
            "a library caught it and continued", None, on_mac(), ended(0, words=[f"Skipping clip.wav due to {_ERROR}"])
        ),
        Case("a different TypeError", None, on_mac(), raises("TypeError: unsupported operand type(s)")),
    ],
)

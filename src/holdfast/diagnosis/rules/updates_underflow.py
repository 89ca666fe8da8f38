"""Most updates are too small for the dtype of the weights.

**What it means.** Gradients are nonzero, and the optimizer computes updates, but these are smaller than half the
distance from the weight to the next number of its dtype, so adding them changes nothing. Large weights stay the same;
only small ones learn.

**Why it happens.** The weights are in bfloat16 (8 bits of precision) or float16, and the learning rate is small. In
bfloat16, an update of one thousandth of the weight is lost.

**What to do.** Keep the weights in float32 and use autocast for the computation. Or use an optimizer with float32
master weights or stochastic rounding. Or raise the learning rate.

**When it is reported.** At least half of the checked tensors are affected; in each of them, at least half of the rows
with a gradient. Weights must have been checked at least twice.

**Severity.** It is always reported as a `note`.

**When it is not reported.** Nothing is reported if fewer tensors or rows are affected: healthy float32 training leaves
about one percent of the rows unchanged in a step.
"""

from __future__ import annotations

from holdfast.diagnosis.rule import Case, Finding, Rule, RunState
from holdfast.schema import events
from holdfast.testing.relations import stuck, weight_updates

ID = "updates-underflow"
LIMITS = {"samples": 2, "part_of_tensors": 0.5, "part_of_rows": 0.5}
MAX_REPORTED = 32
"""The probe reports at most this many stuck tensors."""


def judge(state: RunState) -> Finding | None:
    weights = state.attempt.weights
    newest = weights.weight_updates
    if newest is None or not newest.stuck:
        return None
    limits = state.get_limits(ID, LIMITS)
    lost = [tensor for tensor in newest.stuck if tensor.update_ulps is not None and tensor.update_ulps < 1.0]
    has_enough = len(lost) >= limits["part_of_tensors"] * newest.checked or len(lost) >= MAX_REPORTED
    if weights.samples < limits["samples"] or not lost or not has_enough:
        return None
    rows, unchanged_rows = sum(tensor.with_gradient for tensor in lost), sum(tensor.stuck for tensor in lost)
    if unchanged_rows < limits["part_of_rows"] * rows:
        return None
    largest = max(tensor.update_ulps or 0.0 for tensor in lost)
    return Finding(
        severity="note",
        message=(
            f"Updates are lost to rounding: {unchanged_rows} of {rows} rows with a gradient did not change, "
            f"in {len(lost)} of {newest.checked} tensors."
        ),
        evidence=[
            f"step {newest.step}: the largest of these updates is {largest:.2g} units in the last place of the weight",
            f"for example {', '.join(tensor.name for tensor in lost[:3])}",
        ],
        remedies=[
            "keep the weights in float32 and compute under torch.autocast",
            "use an optimizer with float32 master weights or stochastic rounding",
            "raise the learning rate, if the weights must stay in 16 bits",
        ],
    )


RULE = Rule(
    kind="learning",
    on=(events.WeightUpdates,),
    judge=judge,
    limits=LIMITS,
    cases=lambda: [
        Case(
            "bfloat16 with a small learning rate",
            "note",
            (weight_updates(s, *(stuck(n, 0.2) for n in "abc")) for s in (2, 30)),
        ),
        Case("a single check", None, weight_updates(2, *(stuck(n, 0.2) for n in "abc"))),
        Case(
            "a few rows in float32", None, (weight_updates(s, *(stuck(n, 0.2, rows=1) for n in "abc")) for s in (2, 30))
        ),
        Case("one tensor of many", None, weight_updates(2), weight_updates(30, stuck("a", 0.1), checked=20)),
        Case("all weights change", None, weight_updates(2), weight_updates(9)),
    ],
)

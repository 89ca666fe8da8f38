"""A score jumps up and down from one validation to the next.

**What it means.** If a score doubles and halves between validations, a single value means little. It shows neither that
the last change of settings helped, nor that the checkpoint with the highest value is the best.

**Why it happens.** Possible causes are a small validation set, few predictions above the threshold (precision at a
recall near zero), a learning rate that is still high, or batch statistics over small batches.

**What to do.** Compare runs by a more stable metric (mAP50-95 instead of precision), over several validations and
several seeds. Lower the learning rate, or average the weights (EMA).

**When it is reported.** There must be at least 6 validations. Among the last 12, there must be at least 3 jumps, with
at least one in each direction. A jump is a change by a factor of at least 1.8 and by at least a quarter of the highest
value.

**Severity.** It is always reported as a `note`. It is withdrawn if the last validations are stable when the run ends.

**When it is not reported.** Nothing is reported for losses, for scores that rise steeply and stay high, or for single
outliers.

Sources: in one reported case, the precision of consecutive validations was 0.131, 0.471, 0.244, 0.085, 0.100, 0.499.
"""

from __future__ import annotations

import math
from itertools import pairwise

from holdfast.diagnosis.aggregators.metrics import newest_of, over_attempts
from holdfast.diagnosis.rule import Case, Finding, Limits, Rule, RunState
from holdfast.schema import events
from holdfast.testing.series import validations

LIMITS = {"validations": 6, "jumps": 3, "factor": 1.8, "share": 0.25}
NEWEST = 12


def judge(state: RunState) -> Finding | None:
    by_attempt = state.validated
    limits = state.get_limits("metrics-unstable", LIMITS)
    newest = newest_of(by_attempt)
    if newest is None or sum(len(metrics.history) for metrics in by_attempt) < limits["validations"]:
        return None
    for name in newest.scores():
        points = over_attempts(by_attempt, name).points[-NEWEST:]
        values = [point.value for point in points]
        if len(values) < limits["validations"] or not all(map(math.isfinite, values)) or min(values) < 0.0:
            continue
        up, down = _count_jumps(values, limits)
        if up and down and up + down >= limits["jumps"]:
            return Finding(
                severity="note",
                message=f"{name} jumps from one validation to the next: between {min(values):.3g} and {max(values):.3g} in "
                f"the last {len(values)}. A single value means little.",
                evidence=[
                    f"{up} jumps up and {down} down by a factor of {limits['factor']:g} or more",
                    f"{name}: " + ", ".join(f"{point.value:.3g} (epoch {point.epoch})" for point in points[-8:]),
                ],
                remedies=[
                    "compare runs by a more stable metric (mAP50-95), over several validations and seeds",
                    "validate on more data, or lower the learning rate",
                ],
                confidence="likely",
            )
    return None


def _count_jumps(values: list[float], limits: Limits) -> tuple[int, int]:
    """Count the jumps up and down that are large for this score."""
    min_change = limits["share"] * max(values)
    up = down = 0
    for before, after in pairwise(values):
        low, high = min(before, after), max(before, after)
        if high - low >= min_change and high >= limits["factor"] * low and high > 0.0:
            up, down = (up + 1, down) if after > before else (up, down + 1)
    return up, down


RULE = Rule(
    kind="learning",
    on=(events.Metrics,),
    judge=judge,
    limits=LIMITS,
    retractable=True,
    charts=("metrics", "validation-loss"),
    cases=lambda: [
        Case(
            "precision that jumps between 0.085 and 0.499",
            "note",
            validations(metrics__precision=[0.131, 0.471, 0.244, 0.085, 0.100, 0.499]),
        ),
        Case(
            "a score that rises steeply and stays high",
            None,
            validations(mAP50=[0.01, 0.05, 0.2, 0.5, 0.7, 0.71, 0.73]),
        ),
        Case("a single outlier", None, validations(mAP50=[0.5, 0.52, 0.1, 0.53, 0.54, 0.55, 0.56])),
        Case("small changes around one level", None, validations(acc=[0.7, 0.75, 0.68, 0.74, 0.69, 0.76, 0.7])),
        Case("a loss", None, validations(val__loss=[1.0, 9.0, 1.0, 9.0, 1.0, 9.0, 1.0])),
        Case("too few validations", None, validations(metrics__precision=[0.1, 0.5, 0.1, 0.5])),
    ],
)

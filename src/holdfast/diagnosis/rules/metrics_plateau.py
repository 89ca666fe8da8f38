"""The best score has not improved for a long time.

**What it means.** No recent validation has clearly improved on the best score. Continuing with the same settings is
unlikely to help.

**Why it happens.** The model has learned what it can from this data with these settings. Or the learning rate is too
high to converge, or too low to make progress.

**What to do.** Use the checkpoint of the best epoch. Use early stopping (`patience=N`), or change one thing at a time,
such as the learning rate or the amount of data.

**When it is reported.** The rule checks the score that selects the best checkpoint (fitness, mAP50-95, F1, accuracy),
or the validation loss if there is no such score. A plateau is reported if this value improved by less than 1% over the
last 15 validations or the last third of all validations, whichever is longer.

**Severity.** It is always reported as a `note`. It is withdrawn if the score improves again before the run ends.

**When it is not reported.** Nothing is reported while the score improves, in short runs, if the score is already at
least 0.99, or if every score is 0 (see metrics-all-zero).
"""

from __future__ import annotations

import math

from holdfast.diagnosis.aggregators.metrics import best_of, over_attempts
from holdfast.diagnosis.rule import Case, Finding, Rule, RunState
from holdfast.schema import events
from holdfast.testing.series import validations

LIMITS = {"validations": 15, "share": 0.33, "gain": 0.01, "full_score": 0.99}


def judge(state: RunState) -> Finding | None:
    limits = state.get_limits("metrics-plateau", LIMITS)
    by_attempt = state.validated
    if sum(len(metrics.history) for metrics in by_attempt) <= limits["validations"]:
        return None
    best = best_of(by_attempt)
    if best is None or (best.higher_is_better and limits["full_score"] <= best.value <= 1.0):
        return None
    points = over_attempts(by_attempt, best.name).points
    tolerance = limits["gain"] * abs(best.value)
    first_near_best = next(
        n for n, point in enumerate(points) if math.isfinite(point.value) and abs(point.value - best.value) <= tolerance
    )
    since = len(points) - 1 - first_near_best
    if since < max(limits["validations"], limits["share"] * len(points)):
        return None
    return Finding(
        severity="note",
        message=f"{best.name} has not improved by more than {100 * limits['gain']:g}% since epoch {points[first_near_best].epoch}; its best "
        f"value is {best.value:.4g} in epoch {best.epoch}.",
        evidence=[
            f"{since} of {len(points)} validations since then: best {best.value:.4g}, newest {points[-1].value:.4g}"
        ],
        remedies=[
            f"use the checkpoint of epoch {best.epoch}",
            "stop here, or change one thing at a time, such as the learning rate or the amount of data",
        ],
        confidence="likely",
    )


RISING = [0.05 * n for n in range(11)]
RULE = Rule(
    kind="learning",
    on=(events.Metrics,),
    judge=judge,
    limits=LIMITS,
    retractable=True,
    charts=("metrics", "validation-loss"),
    cases=lambda: [
        Case("no improvement for twenty validations", "note", validations(fitness=[*RISING, *[0.48] * 20])),
        Case("only tiny improvements", "note", validations(fitness=[*RISING, *[0.5 + n / 9000 for n in range(20)]])),
        Case("a validation loss that stopped falling", "note", validations(val__loss=[3.0, 2.0, 1.0, *[1.1] * 20])),
        Case("a score that still rises", None, validations(fitness=[0.01 * n for n in range(40)])),
        Case("a short plateau in a long run", None, validations(fitness=[*[0.01 * n for n in range(60)], *[0.5] * 16])),
        Case("a task that is solved", None, validations(val__accuracy=[0.9, *[0.995] * 30])),
        Case("every score is zero", None, validations(fitness=[0.0] * 30)),
        Case("a short run", None, validations(fitness=[0.5] * 9)),
    ],
)

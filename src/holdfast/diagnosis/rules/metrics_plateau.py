"""The best score has not been beaten for a long time.

**What it means.** The validations since the best one added nothing. The rest of the plan will probably not either, unless
something changes.

**Why it happens.** The model has learned what it can with this data and these settings; or the learning rate is too high to settle, or
too low to move.

**What to do.** Use the checkpoint of the best epoch. Stop by patience, or change one thing: a lower learning rate, more data.

**What it needs to see.** The score that chooses the best checkpoint (fitness, mAP50-95, F1, accuracy), else the validation loss: no
gain of 1% for 15 validations and a third of all of them.

**When it stays silent.** While the score improves, in short runs, at the end of a scale (a score that is already above 0.99), and
where every score is 0 (see metrics-all-zero). It is never more than a note.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from holdfast.diagnosis.aggregators.metrics import best_of, over_attempts
from holdfast.diagnosis.rule import Case, Rule
from holdfast.schema import events
from holdfast.schema.verdicts import Finding
from holdfast.testing.histories import started
from holdfast.testing.series import validations

if TYPE_CHECKING:
    from holdfast.diagnosis.run_state import RunState

LIMITS = {"validations": 15, "share": 0.33, "gain": 0.01, "full_score": 0.99}


def judge(state: RunState) -> Finding | None:
    limits = state.tuned("metrics-plateau", LIMITS)
    several = state.validated
    if sum(len(each.history) for each in several) <= limits["validations"]:
        return None
    best = best_of(several)
    if best is None or (best.higher_is_better and limits["full_score"] <= best.value <= 1.0):
        return None
    points = over_attempts(several, best.name).points
    allowed = limits["gain"] * abs(best.value)
    near = next(
        n for n, point in enumerate(points) if math.isfinite(point.value) and abs(point.value - best.value) <= allowed
    )
    since = len(points) - 1 - near
    if since < max(limits["validations"], limits["share"] * len(points)):
        return None
    return Finding(
        rule="metrics-plateau",
        severity="note",
        message=f"{best.name} has not improved by more than {100 * limits['gain']:g}% since epoch {points[near].epoch}; its best "
        f"is {best.value:.4g} in epoch {best.epoch}.",
        evidence=[
            f"{since} of {len(points)} validations since then, best {best.value:.4g}, newest {points[-1].value:.4g}"
        ],
        remedies=[
            f"use the checkpoint of epoch {best.epoch}",
            "stop here, or change one thing: a lower learning rate, more or other data",
        ],
        confidence="likely",
    )


RISES = [0.05 * n for n in range(11)]
RULE = Rule(
    id="metrics-plateau",
    kind="learning",
    on=(events.Metrics,),
    judge=judge,
    limits=LIMITS,
    page=__doc__ or "",
    retractable=True,
    cases=[
        Case("no gain for twenty validations", [*started(), *validations(fitness=[*RISES, *[0.48] * 20])], "note"),
        Case(
            "tiny gains only",
            [*started(), *validations(fitness=[*RISES, *[0.5 + n / 9000 for n in range(20)]])],
            "note",
        ),
        Case("a validation loss", [*started(), *validations(val__loss=[3.0, 2.0, 1.0, *[1.1] * 20])], "note"),
        Case("still rising", [*started(), *validations(fitness=[0.01 * n for n in range(40)])], None),
        Case(
            "a short stretch of a long run",
            [*started(), *validations(fitness=[*[0.01 * n for n in range(60)], *[0.5] * 16])],
            None,
        ),
        Case("solved", [*started(), *validations(val__accuracy=[0.9, *[0.995] * 30])], None),
        Case("all zero", [*started(), *validations(fitness=[0.0] * 30)], None),
        Case("short", [*started(), *validations(fitness=[0.5] * 9)], None),
    ],
)

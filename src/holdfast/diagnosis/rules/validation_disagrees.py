"""The final validation of the best checkpoint contradicts the validations during the training.

**What it means.** The trainer validated its best checkpoint once more at the end, and the score is less than half, or more than
double, of what the same epoch was given while it trained. One of the two is wrong, and you cannot tell which by looking at the numbers.

**Why it happens.** A device that computes one of the two passes wrongly (an M4 Pro gave 0.297 in the loop and 0.780 alone); half
precision in one of them; a checkpoint that is not what was live; weights whose NaN were saved as zeros.

**What to do.** Validate best.pt on the CPU: `yolo val model=best.pt device=cpu`. Trust that one.

**What it needs to see.** A further validation at the end that belongs to no epoch, and the same score in the epoch that chose the
checkpoint: a factor of 2 and 0.05 apart.

**When it stays silent.** Where no such validation is made, and on small differences: fused layers and half precision change the last
digits.

Sources: ultralytics#24399 (open).
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from holdfast.diagnosis.aggregators.metrics import best_of, is_known_score, over_attempts
from holdfast.diagnosis.rule import Case, Rule
from holdfast.schema import events
from holdfast.schema.events import as_number
from holdfast.schema.verdicts import Finding
from holdfast.testing.histories import started
from holdfast.testing.series import final, validations

if TYPE_CHECKING:
    from collections.abc import Sequence

    from holdfast.diagnosis.aggregators.metrics import Metrics
    from holdfast.diagnosis.run_state import RunState

LIMITS = {"factor": 2.0, "apart": 0.05}
NOT_AT_ALL = ("precision", "recall")
"""They depend on a threshold that each validation chooses for itself."""


def judge(state: RunState) -> Finding | None:
    metrics = state.attempt.metrics
    if metrics.final is None:
        return None
    limits = state.tuned("validation-disagrees", LIMITS)
    several = state.validated
    best = best_of(several)
    for name, said in metrics.final.values.items():
        again = as_number(said)
        if again is None or not is_known_score(name) or any(word in name.lower() for word in NOT_AT_ALL):
            continue
        before = _in_the_loop(several, name, best.epoch if best is not None else None)
        if before is None or not math.isfinite(before) or not math.isfinite(again):
            continue
        where = f"in epoch {best.epoch}, which it comes from" if best is not None else "while it trained"
        low, high = sorted((before, again))
        if high - low > limits["apart"] and high > limits["factor"] * low:
            return Finding(
                rule="validation-disagrees",
                severity="warn",
                message=f"{name} of the best checkpoint is {again:.4g} when validated at the end, but was {before:.4g} {where}: one of "
                "the two is wrong.",
                evidence=[
                    f"{where}: {before:.4g}",
                    f"{metrics.final.source}: {again:.4g}",
                ],
                remedies=[
                    "validate the checkpoint on the CPU (yolo val model=best.pt device=cpu) and trust that",
                    "then use a newer torch, or validate with half=False",
                ],
                confidence="likely",
            )
    return None


def _in_the_loop(several: Sequence[Metrics], name: str, epoch: int | None) -> float | None:
    """What a score was in the epoch that chose the checkpoint, or at its best where none was chosen."""
    points = over_attempts(several, name).points
    return max((point.value for point in points if epoch is None or point.epoch == epoch), default=None)


LOOP = validations(metrics__mAP50=[0.1, 0.2, 0.297, 0.29], fitness=[0.05, 0.1, 0.2, 0.19])
RULE = Rule(
    id="validation-disagrees",
    kind="proof",
    on=(events.Metrics,),
    judge=judge,
    limits=LIMITS,
    page=__doc__ or "",
    cases=[
        Case("alone it is much better", [*started(), *LOOP, *final(metrics__mAP50=0.78)], "warn"),
        Case("alone it is much worse", [*started(), *LOOP, *final(metrics__mAP50=0.1)], "warn"),
        Case("alone it finds nothing", [*started(), *LOOP, *final(metrics__mAP50=0.0)], "warn"),
        Case(
            "it found nothing while it trained",
            [*started(), *validations(metrics__mAP50=[0.0] * 5, fitness=[0.0] * 5), *final(metrics__mAP50=0.6)],
            "warn",
        ),
        Case("nearly the same", [*started(), *LOOP, *final(metrics__mAP50=0.305)], None),
        Case(
            "both small",
            [*started(), *validations(metrics__mAP50=[0.0, 0.01], fitness=[0.0, 0.01]), *final(metrics__mAP50=0.04)],
            None,
        ),
        Case("it differs from an epoch that was not chosen", [*started(), *LOOP[:3], *final(metrics__mAP50=0.3)], None),
        Case(
            "only precision differs",
            [
                *started(),
                *validations(metrics__precision=[0.1, 0.2], fitness=[0.1, 0.2]),
                *final(metrics__precision=0.9),
            ],
            None,
        ),
        Case("not validated again", [*started(), *LOOP], None),
    ],
)

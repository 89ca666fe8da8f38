"""The final validation of the best checkpoint contradicts the validations during training.

**What it means.** The trainer validated its best checkpoint once more at the end, and the score is less than half, or
more than double, the score of the same epoch during training. One of the two is wrong, and the numbers alone do not
show which.

**Why it happens.** Common causes are:

- a device that computes one of the two validations incorrectly (in one reported case, an M4 Pro gave 0.297 during
  training and 0.780 in a separate validation)
- one of them uses half precision
- the checkpoint differs from the model in memory, or its NaN weights were saved as zeros

**What to do.** Validate `best.pt` on the CPU and trust that result: `yolo val model=best.pt device=cpu`.

**When it is reported.** There must be a final validation of the checkpoint, and a value of the same metric from the
epoch in which that checkpoint was saved. The two values must differ by more than a factor of 2 and by more than 0.05.

**Severity.** It is always reported as `warn`.

**When it is not reported.** Nothing is reported if there is no final validation, if only precision or recall differ
(they depend on a threshold that each validation chooses), or if the difference is small: fused layers and half
precision change the last digits.

Sources: ultralytics#24399.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from holdfast.diagnosis.aggregators.metrics import best_of, is_known_score, over_attempts
from holdfast.diagnosis.hints import hint
from holdfast.diagnosis.rule import Case, Finding, Rule, RunState
from holdfast.schema import events
from holdfast.schema.events import as_number
from holdfast.testing.series import final, validations

if TYPE_CHECKING:
    from collections.abc import Sequence

    from holdfast.diagnosis.aggregators.metrics import Metrics

LIMITS = {"factor": 2.0, "apart": 0.05}
IGNORED = ("precision", "recall")
"""Scores that are not compared: they depend on a threshold that each validation chooses."""


def judge(state: RunState) -> Finding | None:
    metrics = state.attempt.metrics
    if metrics.final is None:
        return None
    limits = state.get_limits("validation-disagrees", LIMITS)
    by_attempt = state.validated
    best = best_of(by_attempt)
    for name, value in metrics.final.values.items():
        final_score = as_number(value)
        if final_score is None or not is_known_score(name) or any(word in name.lower() for word in IGNORED):
            continue
        earlier_score = _find_score_in_training(by_attempt, name, best.epoch if best is not None else None)
        if earlier_score is None or not math.isfinite(earlier_score) or not math.isfinite(final_score):
            continue
        where = f"in epoch {best.epoch}, when it was saved" if best is not None else "during training"
        low, high = sorted((earlier_score, final_score))
        if high - low > limits["apart"] and high > limits["factor"] * low:
            return Finding(
                severity="warn",
                message=f"{name} of the best checkpoint is {final_score:.4g} in the final validation, but was {earlier_score:.4g} {where}: one of "
                "the two is wrong.",
                evidence=[
                    f"{where}: {earlier_score:.4g}",
                    f"{metrics.final.source}: {final_score:.4g}",
                ],
                remedies=[
                    f"validate the checkpoint on the CPU{hint(state, 'validate-on-cpu')} and trust that result",
                    f"then use a newer torch, or validate in full precision{hint(state, 'validate-in-full-precision')}",
                ],
                confidence="likely",
            )
    return None


def _find_score_in_training(by_attempt: Sequence[Metrics], name: str, epoch: int | None) -> float | None:
    """Return a score in the epoch that the checkpoint is from, or its best value if that epoch is not known."""
    points = over_attempts(by_attempt, name).points
    return max((point.value for point in points if epoch is None or point.epoch == epoch), default=None)


TRAINING = validations(metrics__mAP50=[0.1, 0.2, 0.297, 0.29], fitness=[0.05, 0.1, 0.2, 0.19])
RULE = Rule(
    kind="proof",
    on=(events.Metrics,),
    judge=judge,
    limits=LIMITS,
    suspects_device=True,
    remedies=("validation-on-cpu",),
    cases=lambda: [
        Case("the final validation is much better", "warn", TRAINING, final(metrics__mAP50=0.78)),
        Case("the final validation is much worse", "warn", TRAINING, final(metrics__mAP50=0.1)),
        Case("the final validation is 0", "warn", TRAINING, final(metrics__mAP50=0.0)),
        Case(
            "all validations during training were 0",
            "warn",
            validations(metrics__mAP50=[0.0] * 5, fitness=[0.0] * 5),
            final(metrics__mAP50=0.6),
        ),
        Case("nearly the same scores", None, TRAINING, final(metrics__mAP50=0.305)),
        Case(
            "both scores are small",
            None,
            validations(metrics__mAP50=[0.0, 0.01], fitness=[0.0, 0.01]),
            final(metrics__mAP50=0.04),
        ),
        Case("the score differs only from the scores of other epochs", None, TRAINING[:3], final(metrics__mAP50=0.3)),
        Case(
            "only precision differs",
            None,
            validations(metrics__precision=[0.1, 0.2], fitness=[0.1, 0.2]),
            final(metrics__precision=0.9),
        ),
        Case("no final validation", None, TRAINING),
    ],
)

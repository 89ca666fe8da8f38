"""Training ended, and the model is no better than at the start.

**What it means.** No validation was better than the first one, or the loss is clearly higher than in the first steps.
The run produced nothing better than the model that you already had.

**Why it happens.** Possible causes are a learning rate that is too high for a pretrained model, labels that do not
match their inputs (shuffled, or from different classes), data that is normalized differently than in pretraining, or a
learning rate that does not decrease enough toward the end.

**What to do.** Use the first checkpoint, if it was kept. Try a tenth of the learning rate. Check a few labels by eye.

**When it is reported.** The run ended with exit status 0, and one of these conditions is met:

- There are at least 5 validations of a well-known score (such as accuracy or mAP), and every later value is below the
  first.
- A single optimizer was stepped at least 200 times, the loss never went below zero, and its mean over the last 10% of
  the steps is at least 10% higher than its mean over the first 10%. The increase is also larger than the noise.

**Severity.** A drop in a score is `warn` if its last value is more than 5% below the first, and `note` otherwise. A
higher loss is `warn` if Holdfast observes a `DataLoader`, and `note` otherwise: in loops that generate their own data,
the model may learn while the loss rises.

**When it is not reported.** Nothing is reported for scores that start near the top of their scale (0.95 or more), if
every score is 0 (see metrics-all-zero), or for failed attempts. The loss is not checked if several optimizers are used,
or if it goes below zero.
"""

from __future__ import annotations

import math

from holdfast.diagnosis.aggregators.metrics import is_known_score, over_attempts
from holdfast.diagnosis.loss_semantics import has_single_optimizer, is_positive, uses_loader
from holdfast.diagnosis.rule import Case, Finding, Limits, Rule, RunState
from holdfast.diagnosis.series import fall
from holdfast.schema import events
from holdfast.testing.histories import ended
from holdfast.testing.series import steps, validations

LIMITS = {"validations": 5, "below": 0.05, "steps": 200, "above": 0.1}
FULL_SCORES = ((0.95, 1.0), (95.0, 100.0))
NOISE = 3.0


def judge(state: RunState) -> Finding | None:
    if not state.attempt.finished:
        return None
    limits = state.get_limits("not-better-than-initial", LIMITS)
    findings = [finding for finding in (_judge_score(state, limits), _judge_loss(state, limits)) if finding is not None]
    return min(findings, key=lambda finding: finding.severity != "warn", default=None)


def _judge_score(state: RunState, limits: Limits) -> Finding | None:
    by_attempt = state.validated
    name = next(filter(is_known_score, state.attempt.metrics.scores()), None)
    if name is None:
        return None
    points = over_attempts(by_attempt, name).points
    if len(points) < limits["validations"] or not all(math.isfinite(point.value) for point in points):
        return None
    first, later = points[0], points[1:]
    best = max(later, key=lambda point: point.value)
    near_full = any(low <= first.value <= high for low, high in FULL_SCORES)
    if first.value <= 0.0 or best.value >= first.value or near_full:
        return None
    is_clearly_worse = points[-1].value < (1 - limits["below"]) * first.value
    return Finding(
        severity="warn" if is_clearly_worse else "note",
        message=f"{name} was never better than in the first validation: {first.value:.4g} in epoch {first.epoch}, at best "
        f"{best.value:.4g} later, {points[-1].value:.4g} at the end.",
        evidence=[f"all {len(later)} later validations are below the first"],
        remedies=[
            f"use the checkpoint of epoch {first.epoch}, if it was kept",
            "try a tenth of the learning rate",
            "check the labels of a few samples by eye, and that inputs are normalized as in pretraining",
        ],
        confidence="likely",
    )


def _judge_loss(state: RunState, limits: Limits) -> Finding | None:
    loss = state.loss
    if loss.count < limits["steps"] or loss.lowest < 0.0:
        return None
    if not all(has_single_optimizer(attempt) for attempt in state.attempts) or not is_positive(state.attempt):
        return None
    change = fall(loss)
    if change is None:
        return None
    rise = change.late - change.early
    if rise <= NOISE * change.noise or rise <= limits["above"] * change.early:
        return None
    return Finding(
        severity="warn" if uses_loader(state.attempt) else "note",
        message=f"The loss ended higher than it started: {change.late:.4g} compared with {change.early:.4g} (± {change.noise:.2g}).",
        evidence=[
            f"mean of the first tenth {change.early:.4g}, of the last tenth {change.late:.4g}, over {loss.count} steps"
        ],
        remedies=[
            "try a tenth of the learning rate, or add warm-up",
            "check the labels of a few samples by eye",
            "check the sign of every term of the loss",
        ],
        confidence="likely",
    )


RISING = [1.0 + n / 100 + 0.1 * (n % 3) for n in range(240)]
RULE = Rule(
    kind="proof",
    on=(events.AttemptEnded,),
    judge=judge,
    limits=LIMITS,
    cases=lambda: [
        Case(
            "the first validation was the best",
            "warn",
            validations(fitness=[0.4, 0.3, 0.35, 0.2, 0.25]),
            ended(0, last_step=500),
        ),
        Case("the loss rose", "warn", steps(*RISING, loader=True), ended(0, last_step=240)),
        Case("the loss rose in a loop that generates its own data", "note", steps(*RISING), ended(0, last_step=240)),
        Case(
            "fine-tuning that keeps its level",
            "note",
            validations(val__accuracy=[0.81, 0.80, 0.805, 0.79, 0.80]),
            ended(0, last_step=500),
        ),
        Case(
            "solved in the first epoch",
            None,
            validations(val__accuracy=[0.99, 0.98, 0.985, 0.989, 0.93]),
            ended(0, last_step=500),
        ),
        Case(
            "a score that improved in between",
            None,
            validations(fitness=[0.2, 0.4, 0.3, 0.1, 0.1]),
            ended(0, last_step=500),
        ),
        Case("too few validations", None, validations(fitness=[0.4, 0.3, 0.2]), ended(0, last_step=300)),
        Case("perplexity falls", None, validations(perplexity=[90.0, 50.0, 40.0, 30.0, 20.0]), ended(0, last_step=500)),
        Case("the loss fell", None, steps(*RISING[::-1], loader=True), ended(0, last_step=240)),
        Case(
            "a noisy loss", None, steps(*[1.0 + n * 37 % 11 for n in range(240)], loader=True), ended(0, last_step=240)
        ),
        Case("a loss that goes below zero", None, steps(-0.1, *RISING, loader=True), ended(0, last_step=241)),
        Case("two optimizers", None, steps(*RISING, loader=True, other_steps={"Adam#2": 1}), ended(0, last_step=240)),
        Case("the command failed (covered by other rules)", None, steps(*RISING, loader=True), ended(1, last_step=240)),
    ],
)

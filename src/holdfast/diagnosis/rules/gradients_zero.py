"""Gradients are exactly zero.

**What it means.** The loss is nonzero and `backward()` runs, but every gradient is exactly 0.0. Nothing is learned from
then on. Alternatively, only the weight of one layer has a zero gradient, while its bias does not: the input of that
layer is then all zeros, and its weight does not learn.

**Why it happens.** All ReLUs are dead: their inputs are negative for all samples after one step that was too large.
Other causes are a non-differentiable operation between the weights and the loss (`round`, `argmax`, a comparison, a
clamp that is always at its bound), a loss that is multiplied by zero, tensors created with `expand()` (stride 0) on MPS
with some versions of macOS, or inputs that were scaled with integer division (`images // 255`) and are all zero.

**What to do.** Look for a non-differentiable operation between the weights and the loss. If the gradients became zero
during training, lower the learning rate, add warm-up, or use a leaky activation. On MPS, call `.contiguous()` on
expanded tensors. Print the minimum and maximum of one batch.

**Severity.** The severity depends on how long the gradients have been zero:

- If gradients are zero from the start: `warn` after three checked steps, `fatal` after ten steps.
- If they become zero later: `fatal` after 50 steps.
- If only the weight of one layer is affected: `warn` after 30 steps.

**When it is not reported.** It is not reported if the loss is zero or has fallen to a thousandth of its first value
(the task is solved), or if the learning rate is zero. A head or a branch without any gradient is ignored, because its
weight in the loss may be zero for now.

Sources: pytorch#180201 (expanded tensors on MPS).
"""

from __future__ import annotations

from holdfast.diagnosis.rule import AttemptState, Case, Finding, Limits, Rule, RunState
from holdfast.schema import events
from holdfast.testing.histories import trains
from holdfast.testing.relations import sample, steps, weight_updates

ID = "gradients-zero"
LIMITS = {"sightings": 3, "steps_at_first": 10, "steps_later": 50, "steps_of_a_layer": 30, "solved_below": 1e-3}


def judge(state: RunState) -> Finding | None:
    attempt = state.attempt
    if not (attempt.gradients.zero.count or attempt.weights.zero_input):
        return None
    limits = state.get_limits(ID, LIMITS)
    if not _has_loss(attempt, limits["solved_below"]) or (attempt.rates.latest and not max(attempt.rates.latest)):
        return None
    return _report_all(state, limits) or _report_layer(attempt, limits)


def _report_all(state: RunState, limits: Limits) -> Finding | None:
    attempt = state.attempt
    zero = attempt.gradients.zero
    from_the_start = not attempt.gradients.seen_nonzero
    if zero.count < limits["sightings"] or (not from_the_start and zero.steps < limits["steps_later"]):
        return None
    is_fatal = not from_the_start or zero.steps >= limits["steps_at_first"]
    when = f"in all {zero.steps} steps so far" if from_the_start else f"since step {zero.since}"
    return Finding(
        severity="fatal" if is_fatal else "warn",
        step=zero.since,
        corrupt_from=attempt.first_step if from_the_start else zero.since,
        message=f"Every gradient has been exactly 0 {when}, although the loss is {attempt.loss.last:.4g}: nothing is learned.",
        evidence=[
            f"all gradients were 0.0 in {zero.count} checks, from step {zero.since} to step {zero.until}",
            f"the newest loss is {attempt.loss.last:.6g}"
            + ("" if attempt.loss.first is None else f", the first was {attempt.loss.first:.6g}"),
        ],
        remedies=[
            "look for a non-differentiable operation between weights and loss: round, argmax, a comparison, a clamp at its bound",
            "if ReLUs are dead, lower the learning rate, add warm-up, or use a leaky activation",
            *(
                ["call .contiguous() on expanded tensors: they lose gradients on some versions of macOS"]
                if state.on_macos
                else []
            ),
        ],
    )


def _report_layer(attempt: AttemptState, limits: Limits) -> Finding | None:
    affected = {
        name: streak
        for name, streak in attempt.weights.zero_input.items()
        if streak.count >= limits["sightings"] - 1 and streak.steps >= limits["steps_of_a_layer"]
    }
    if not affected:
        return None
    name, streak = next(iter(affected.items()))
    return Finding(
        severity="warn",
        step=streak.since,
        message=f"The gradient of {name} is exactly 0 while that of its bias is not: the input of its layer is all zeros.",
        evidence=[
            f"in each of {streak.count} checks from step {streak.since} to step {streak.until}",
            f"affected layers: {', '.join(list(affected)[:5])}",
        ],
        remedies=[
            "print the minimum and maximum of one batch: scaling with // gives integers, mostly 0",
            "if the inputs are correct, the previous layer is dead: lower the learning rate or use a leaky activation",
        ],
    )


def _has_loss(attempt: AttemptState, solved_below: float) -> bool:
    """Return True if there is a finite loss that is neither zero nor close to solved."""
    loss = attempt.loss
    if not loss.count or loss.last is None or loss.last == 0.0 or loss.nonfinite_in_a_row:
        return False
    return abs(loss.last) > solved_below * abs(loss.first or 0.0)


RULE = Rule(
    kind="learning",
    on=(events.Step, events.Steps, events.Gradients, events.WeightUpdates),
    judge=judge,
    limits=LIMITS,
    corrupts_state=True,
    in_dry_run=True,
    charts=("gradient",),
    remedies=("next-device",),
    cases=lambda: [
        Case("zero from the first step", "fatal", trains(), steps(10, loss=2.3, norm=0.0)),
        Case(
            "known only from individual checks",
            "fatal",
            steps(12, loss=2.3),
            (sample(s, norm=0.0, zero=4) for s in (2, 3, 12)),
            steps(1, first=13),
        ),
        Case("dead units during training", "fatal", steps(40, norm=1.0), steps(60, first=41, norm=0.0)),
        Case(
            "a few steps without a gradient during training", None, steps(40, norm=1.0), steps(20, first=41, norm=0.0)
        ),
        Case("solved: the loss is zero too", None, steps(40, norm=1.0), steps(90, first=41, loss=0.0, norm=0.0)),
        Case(
            "a hinge loss: more and more batches are solved",
            None,
            steps(40, norm=1.0),
            ([steps(1, first=n, loss=0.0, norm=0.0), steps(1, first=n + 1, loss=0.2)] for n in range(41, 200, 2)),
        ),
        Case("almost solved", None, steps(40, norm=1.0), steps(90, first=41, loss=1e-7, norm=0.0)),
        Case("warm-up from zero", None, steps(30, norm=0.0, lr=0.0)),
        Case("one layer without a gradient", None, steps(30), sample(30, zero=3)),
        Case("three steps of zeros", "warn", steps(5, norm=0.0)),
        Case("too early", None, steps(2, norm=0.0)),
        Case(
            "images scaled to zero by integer division",
            "warn",
            steps(50, norm=1.0),
            (weight_updates(s, zero_input=("0.weight",)) for s in (1, 21, 41)),
        ),
        Case(
            "inputs of zero for a while",
            None,
            steps(50, norm=1.0),
            weight_updates(1, zero_input=("0.weight",)),
            weight_updates(21),
            weight_updates(41),
        ),
    ],
)

"""The loss does not change at all.

**What it means.** The loss is exactly the same number in every step, although the learning rate is not zero. The
optimizer's updates have no effect on the loss.

**Why it happens.** The optimizer updates tensors that the model does not use, because it was created before the model
was copied, moved or wrapped. Or the loss is computed from a detached tensor. Or the network is dead: all activations
are zero after a step that was too large, or the embeddings have collapsed to one point. Or the loss is clamped.

**What to do.** Print `loss.grad_fn`, and print one weight before and after a step. Create the optimizer after the model
has been moved to its device. If the loss became constant later in the run, resume from an earlier checkpoint with a
lower learning rate.

**When it is reported.** Either of these conditions is sufficient:

- From the start of the run, the loss is the same in 50 steps with a learning rate above zero. In a run that has already
  finished successfully, 20 steps are sufficient. A loss with few significant digits (bfloat16) can stay constant while
  the model changes, so it must be constant for 500 steps. While a warm-up raises the learning rate, ten times as many
  steps are required.
- Later in the run, the loss is the same in 200 steps (1000 for a loss with few significant digits) and is no lower than
  at the start.

**Severity.** A loss that is constant from the start is reported as `fatal` if none of the checked weights changed or
every sampled gradient was zero, except if the loss has few significant digits. It is reported as a `note` if weights
change and have nonzero gradients, because the loss may be constant by design (policy-gradient surrogates). All other
cases are reported as `warn`.

**When it is not reported.** Nothing is reported in these cases:

- The learning rate is zero (see learning-rate-vanished).
- Several optimizers are used.
- The loss is lower than at the start: the task is solved, or all data is in one batch and training has converged.
- The run was resumed from a checkpoint, and the loss has been constant since then.
- The loss is zero (see loss-all-zero).

Sources: huggingface/accelerate#2665 (an optimizer with stale parameters).
"""

from __future__ import annotations

import math

from holdfast.diagnosis.loss_semantics import has_single_optimizer, is_positive
from holdfast.diagnosis.rule import AttemptState, Case, Finding, Rule, RunState, Severity
from holdfast.schema import events
from holdfast.testing.histories import ended, started, trains, window
from holdfast.testing.relations import sample, weight_updates
from holdfast.testing.series import steps

LIMITS = {"steps": 50, "steps_of_a_whole_run": 20, "steps_of_few_digits": 500, "steps_later": 200}
RISING_RATE_FACTOR = 10
"""Factor on the required steps while the learning rate rises: the first updates may be too small to show."""
FEW_BITS = 16
"""A number with at most this many significant bits is a half-precision number, or a mean of such numbers."""


def judge(state: RunState) -> Finding | None:
    attempt = state.attempt
    same_steps = attempt.losses.same_at_rate
    limits = state.get_limits("loss-constant", LIMITS)
    if same_steps < limits["steps_of_a_whole_run"] or not attempt.loss.last or not has_single_optimizer(attempt):
        return None
    if attempt.loss.same_in_a_row != attempt.loss.count or attempt.loss.nonfinite:
        return _judge_later_constant(attempt, same_steps, limits["steps_later"])
    if attempt.started.resume is not None and attempt.started.resume.checkpoint is not None:
        return None
    min_steps = limits["steps_of_a_whole_run" if attempt.finished else "steps"]
    if has_few_digits(attempt.loss.last):
        min_steps = limits["steps_of_few_digits"]
    rate = attempt.rates.highest
    if rate.first is not None and rate.last is not None and rate.last > rate.first:
        min_steps *= RISING_RATE_FACTOR
    return _judge_constant_from_start(attempt, same_steps) if same_steps >= min_steps else None


def _judge_constant_from_start(attempt: AttemptState, same_steps: int) -> Finding:
    weights, grads = attempt.weights, attempt.gradients
    is_alive = weights.most_moved > 0 and grads.seen_nonzero
    is_dead = (weights.samples and not weights.most_moved) or (grads.samples and not grads.seen_nonzero)
    severity: Severity = (
        "note" if is_alive else "fatal" if is_dead and not has_few_digits(attempt.loss.last or 0.0) else "warn"
    )
    observations = []
    if weights.samples:
        observations.append(f"at most {weights.most_moved} weight tensors changed in {weights.samples} checks")
    if grads.samples:
        observations.append(
            "a sampled gradient was nonzero" if grads.seen_nonzero else "every sampled gradient was zero"
        )
    return Finding(
        severity=severity,
        message=f"The loss is exactly {attempt.loss.last:.9g} in all {same_steps} steps"
        + (
            "; weights change and have gradients, so this may be intended."
            if is_alive
            else ": the updates have no effect on it."
        ),
        evidence=[
            f"{same_steps} of {same_steps} losses are {attempt.loss.last:.9g}; the learning rate is not 0",
            *observations,
        ],
        remedies=[
            "print loss.grad_fn, and print one weight before and after a step: one of them will not be what you expect",
            "create the optimizer after the model has been copied, moved or wrapped",
            "check for .detach(), .item() or torch.no_grad() between the model and the loss",
        ],
        confidence="proven" if severity == "fatal" else "possible",
        corrupt_from=attempt.first_step if severity == "fatal" else None,
    )


def _judge_later_constant(attempt: AttemptState, same_steps: int, min_steps: float) -> Finding | None:
    at_first, now = attempt.losses.at_first, attempt.loss.last
    if same_steps < min_steps or at_first is None or now is None or now < at_first or not is_positive(attempt):
        return None
    if has_few_digits(now) and same_steps < 5 * min_steps:
        return None
    return Finding(
        severity="warn",
        message=f"The loss has been exactly {now:.9g} for {same_steps} steps and is no lower than at the start ({at_first:.4g}): the "
        "network returns the same output for every input.",
        evidence=[
            f"the last {same_steps} losses are {now:.9g}; the learning rate is not 0",
            f"the median of the first losses is {at_first:.4g}",
        ],
        remedies=[
            f"resume from a checkpoint saved before step {attempt.last_step - same_steps}",
            "lower the learning rate, or clip gradients",
            "inspect the activations of one batch: if they are all zero or all equal, the network is dead",
        ],
        confidence="likely",
    )


def has_few_digits(value: float) -> bool:
    """Return whether a loss, written with nine digits, is a half-precision number."""
    mantissa, exponent = math.frexp(value)
    rounded = math.ldexp(round(mantissa * 2**FEW_BITS) / 2**FEW_BITS, exponent)
    return float(f"{rounded:.9g}") == value


STUCK = [*weight_updates(1, checked=10, moved=0), *sample(1, norm=0.4, tensors=10, zero=0)]
RULE = Rule(
    kind="learning",
    on=(events.Step, events.Steps, events.AttemptEnded),
    judge=judge,
    limits=LIMITS,
    corrupts_state=True,
    remedies=("next-device",),
    cases=lambda: [
        Case(
            "the optimizer updates tensors that the model does not use",
            "fatal",
            trains(),
            STUCK,
            steps(*[2.302585] * 50),
        ),
        Case(
            "every gradient is zero",
            "fatal",
            weight_updates(1, checked=10, moved=3),
            sample(1, norm=0.0, tensors=10, zero=10),
            steps(*[0.693147182] * 50),
        ),
        Case("a run of 20 steps that finished", "fatal", STUCK, steps(*[2.302585] * 20), ended(0, last_step=20)),
        Case("weights were not checked", "warn", steps(*[2.302585] * 60)),
        Case(
            "weights change nevertheless",
            "note",
            weight_updates(1, checked=10, moved=9),
            sample(1, norm=0.3, tensors=10, zero=0),
            steps(*[2.302585] * 60),
        ),
        Case(
            "a network that is dead after a loss spike",
            "warn",
            steps(2.31, 2.29, 2.35, *[2.2] * 20, 90.0, *[2.302585] * 260),
        ),
        Case("too few steps", None, STUCK, steps(*[2.302585] * 49)),
        Case("the learning rate is zero", None, STUCK, steps(*[2.302585] * 90, rate=0.0)),
        Case(
            "warm-up by epoch from a learning rate of zero, all data in one batch",
            None,
            STUCK,
            steps(*[2.302585] * 60, rate=0.0),
            steps(2.302585, 2.29, 2.1, first=61),
        ),
        Case(
            "warm-up with first updates too small to change the loss",
            None,
            STUCK,
            steps(*[2.302585] * 60, rate=[1e-9 * n for n in range(1, 61)]),
            steps(2.3, 2.2, first=61),
        ),
        Case("a constant loss in bfloat16", None, STUCK, steps(*[10.8125] * 90)),
        Case(
            "all data in one batch, converged",
            None,
            steps(*[3.0 - n / 10 for n in range(25)]),
            steps(*[0.4123] * 400, first=26),
        ),
        Case("two optimizers", None, STUCK, steps(*[2.302585] * 90, other_steps={"Adam#2": 1})),
        Case("a loss of zero (covered by loss-all-zero)", None, steps(*[0.0] * 90)),
        Case(
            "resumed from a checkpoint at its optimum",
            None,
            started(events.Resume("command", "last.pt", 500)),
            STUCK,
            steps(*[0.4123] * 90, first=501),
        ),
        Case("a loss that varies", None, steps(*[2.3 + (n % 2) / 1e6 for n in range(90)])),
        Case("losses that differ slightly", None, window(1, 64, 2.3), window(65, 128, 2.31)),
    ],
)

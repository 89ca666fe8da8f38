"""The loss does not change at all.

**What it means.** Step after step the loss is the same number, to its last bit, although the learning rate is not zero. Nothing
that the steps do reaches the loss.

**Why it happens.** The optimizer holds other tensors than the model uses (built before the model was copied, moved or wrapped);
the loss is computed from something detached; the network is dead (all activations off after too large a step, embeddings
collapsed to one point); the loss is clamped.

**What to do.** Print `loss.grad_fn` and one weight before and after a step. Build the optimizer after the model is on its device.
If it became constant later, go back to a checkpoint from before and lower the learning rate.

**What it needs to see.** 50 steps from the first one on with a learning rate above zero. It is fatal where in addition no weight
was seen to move, or no gradient was seen that is not zero. Later in a run it warns, and only where the loss stands no lower
than at its start for 200 steps.

**When it stays silent.** With a learning rate of zero (see learning-rate-vanished) and while warm-up is raising it; where several
optimizers step; after a fall: a task that is solved, or all data in one batch and converged. Where weights move and have
gradients, a constant value may be made that way (surrogates of policy gradients): a note. Numbers of few digits (a loss in
bfloat16) may stand still while the model moves: those warn, much later.

Sources: silent training errors with stale optimizer parameters (accelerate#2665) and losses that are independent of the data.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from holdfast.diagnosis.loss_semantics import has_single_optimizer, is_positive
from holdfast.diagnosis.rule import Case, Rule
from holdfast.schema import events
from holdfast.schema.verdicts import Finding
from holdfast.testing.histories import ended, started, trains, window
from holdfast.testing.series import gradients, moved, steps

if TYPE_CHECKING:
    from holdfast.diagnosis.run_state import AttemptState, RunState
    from holdfast.schema.verdicts import Severity

LIMITS = {"steps": 50, "steps_of_a_whole_run": 20, "steps_of_few_digits": 500, "steps_later": 200}
WHILE_RISING = 10
"""So many times more steps while the learning rate rises: its first ones may be too small to show."""
FEW_BITS = 16
"""A number with no more significant bits comes from half precision, or from a mean of such numbers."""


def judge(state: RunState) -> Finding | None:
    attempt = state.attempt
    same = attempt.losses.same_at_rate
    limits = state.tuned("loss-constant", LIMITS)
    if same < limits["steps_of_a_whole_run"] or not attempt.loss.last or not has_single_optimizer(attempt):
        return None
    if attempt.loss.same_in_a_row != attempt.loss.count or attempt.loss.nonfinite:
        return _later(attempt, same, limits["steps_later"])
    if attempt.started.resume is not None and attempt.started.resume.checkpoint is not None:
        return None
    least = limits["steps_of_a_whole_run" if attempt.finished else "steps"]
    if has_few_digits(attempt.loss.last):
        least = limits["steps_of_few_digits"]
    rate = attempt.rates.highest
    if rate.first is not None and rate.last is not None and rate.last > rate.first:
        least *= WHILE_RISING
    return _from_the_start(attempt, same) if same >= least else None


def _from_the_start(attempt: AttemptState, same: int) -> Finding:
    weights, grads = attempt.weights, attempt.gradients
    alive = weights.most_moved > 0 and grads.seen_nonzero
    dead = (weights.samples and not weights.most_moved) or (grads.samples and not grads.seen_nonzero)
    severity: Severity = (
        "note" if alive else "fatal" if dead and not has_few_digits(attempt.loss.last or 0.0) else "warn"
    )
    seen = []
    if weights.samples:
        seen.append(f"{weights.most_moved} weight tensors moved at most in {weights.samples} looks")
    if grads.samples:
        seen.append("a gradient was not zero" if grads.seen_nonzero else "no gradient was seen that is not zero")
    return Finding(
        rule="loss-constant",
        severity=severity,
        message=f"The loss is {attempt.loss.last:.9g} in all {same} steps, to its last digit"
        + ("; weights move and have gradients, so it may be meant that way." if alive else ": no step reaches it."),
        evidence=[f"{same} of {same} losses are {attempt.loss.last:.9g}, the learning rate is not 0", *seen],
        remedies=[
            "print loss.grad_fn, and one weight before and after a step: one of them is not what you expect",
            "build the optimizer after the model has been copied, moved or wrapped",
            "look for .detach(), .item() or torch.no_grad() between the model and the loss",
        ],
        confidence="proven" if severity == "fatal" else "possible",
        corrupt_from=attempt.first_step if severity == "fatal" else None,
    )


def _later(attempt: AttemptState, same: int, least: float) -> Finding | None:
    at_first, now = attempt.losses.at_first, attempt.loss.last
    if same < least or at_first is None or now is None or now < at_first or not is_positive(attempt):
        return None
    if has_few_digits(now) and same < 5 * least:
        return None
    return Finding(
        rule="loss-constant",
        severity="warn",
        message=f"The loss has been exactly {now:.9g} for {same} steps, no lower than at the start ({at_first:.4g}): the "
        "network gives the same answer to everything.",
        evidence=[
            f"the last {same} losses are {now:.9g}, the learning rate is not 0",
            f"the median of the first losses is {at_first:.4g}",
        ],
        remedies=[
            f"go back to a checkpoint from before step {attempt.last_step - same}",
            "lower the learning rate, or clip gradients",
            "look at the activations of one batch: all zero, or all the same, is a dead network",
        ],
        confidence="likely",
    )


def has_few_digits(value: float) -> bool:
    """Whether a loss, as it is written with nine digits, is a number of half precision."""
    mantissa, exponent = math.frexp(value)
    rounded = math.ldexp(round(mantissa * 2**FEW_BITS) / 2**FEW_BITS, exponent)
    return float(f"{rounded:.9g}") == value


STUCK = [*moved(0), *gradients(0.4)]
RULE = Rule(
    id="loss-constant",
    kind="learning",
    on=(events.Step, events.Steps, events.AttemptEnded),
    judge=judge,
    limits=LIMITS,
    page=__doc__ or "",
    cases=[
        Case("the optimizer holds other tensors", [*started(), *trains(), *STUCK, *steps(*[2.302585] * 50)], "fatal"),
        Case("no gradient", [*started(), *moved(3), *gradients(0.0), *steps(*[0.693147182] * 50)], "fatal"),
        Case("a short run", [*started(), *STUCK, *steps(*[2.302585] * 20), *ended(0, last_step=20)], "fatal"),
        Case("weights were not looked at", [*started(), *steps(*[2.302585] * 60)], "warn"),
        Case("weights move all the same", [*started(), *moved(9), *gradients(0.3), *steps(*[2.302585] * 60)], "note"),
        Case(
            "a network that died after a spike",
            [*started(), *steps(2.31, 2.29, 2.35, *[2.2] * 20, 90.0, *[2.302585] * 260)],
            "warn",
        ),
        Case("too early", [*started(), *STUCK, *steps(*[2.302585] * 49)], None),
        Case("no learning rate", [*started(), *STUCK, *steps(*[2.302585] * 90, rate=0.0)], None),
        Case(
            "warm-up by epoch from zero with all data in one batch",
            [*started(), *STUCK, *steps(*[2.302585] * 60, rate=0.0), *steps(2.302585, 2.29, 2.1, first=61)],
            None,
        ),
        Case(
            "warm-up whose first steps are too small to show",
            [
                *started(),
                *STUCK,
                *steps(*[2.302585] * 60, rate=[1e-9 * n for n in range(1, 61)]),
                *steps(2.3, 2.2, first=61),
            ],
            None,
        ),
        Case("a loss in bfloat16 that stands still", [*started(), *STUCK, *steps(*[10.8125] * 90)], None),
        Case(
            "all data in one batch, and converged",
            [*started(), *steps(*[3.0 - n / 10 for n in range(25)]), *steps(*[0.4123] * 400, first=26)],
            None,
        ),
        Case("two optimizers", [*started(), *STUCK, *steps(*[2.302585] * 90, other_steps={"Adam#2": 1})], None),
        Case("all zero: another rule's", [*started(), *steps(*[0.0] * 90)], None),
        Case(
            "goes on from a checkpoint at its optimum",
            [*started(events.Resume("command", "last.pt", 500)), *STUCK, *steps(*[0.4123] * 90, first=501)],
            None,
        ),
        Case("it varies", [*started(), *steps(*[2.3 + (n % 2) / 1e6 for n in range(90)])], None),
        Case("windows that vary little", [*started(), *window(1, 64, 2.3), *window(65, 128, 2.31)], None),
    ],
)

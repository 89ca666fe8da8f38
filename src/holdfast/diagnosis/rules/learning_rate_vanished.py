"""The learning rate is zero while training continues.

**What it means.** Steps are taken, but no weight changes. Either the learning rate was never above zero, or it fell to
zero long before the end, and everything after that is wasted.

**Why it happens.** Common causes are:

- a scheduler that was created for fewer steps than are taken, for example for epochs, although it is stepped for each
  batch
- a decay factor for epochs that is applied to steps
- a warm-up that never begins because its scheduler is never stepped
- a learning rate of 0 in the configuration file

**What to do.** Print `optimizer.param_groups[0]["lr"]` at the end of each epoch. Set the scheduler's `T_max` or
`total_steps` to the number of `step()` calls: the number of epochs, or `epochs * len(loader)`.

**When it is reported.** It is reported in two cases:

- The rate has been exactly zero since the start, for 100 steps. During the first two epochs of a `DataLoader`, 1000
  steps are required; in a finished run, 20 are enough.
- The rate fell to zero (or below 1e-8 of its peak) and stayed there for at least 200 steps and at least 20% of all
  steps.

**When it is not reported.** It is not reported for warm-up from zero, by step or over the first epoch; for a schedule
that reaches zero when the run ends; if several optimizers are used; or if weights change although the rate is zero, as
with optimizers that do not use it.

**Severity.** The severity is `fatal` only if the command succeeded and the rate was never above zero, and `warn`
otherwise.

Sources: transformers#33455.
"""

from __future__ import annotations

from holdfast.diagnosis.loss_semantics import has_single_optimizer, uses_loader
from holdfast.diagnosis.rule import AttemptState, Case, Finding, Limits, Rule, RunState
from holdfast.schema import events
from holdfast.testing.histories import ended, trains
from holdfast.testing.relations import weight_updates
from holdfast.testing.series import epoch, schedule, steps

LIMITS = {
    "steps": 100,
    "steps_of_a_first_epoch": 1000,
    "steps_after": 200,
    "share_after": 0.2,
    "steps_of_a_whole_run": 20,
}


def judge(state: RunState) -> Finding | None:
    attempt = state.attempt
    limits = state.get_limits("learning-rate-vanished", LIMITS)
    if attempt.rates.vanished_steps < min(limits["steps"], limits["steps_of_a_whole_run"]):
        return None
    if any(earlier.rates.highest.highest > 0.0 for earlier in state.attempts):
        return _report_fall(attempt, limits)
    return _report_always_zero(attempt, limits)


def _report_always_zero(attempt: AttemptState, limits: Limits) -> Finding | None:
    zero = attempt.rates.vanished_steps
    if attempt.weights.most_moved or not has_single_optimizer(attempt):
        return None
    if not attempt.finished:
        epoch_may_be_long = uses_loader(attempt) and (attempt.epoch or 0) < 2
        if zero < limits["steps_of_a_first_epoch" if epoch_may_be_long else "steps"]:
            return None
    return Finding(
        severity="fatal" if attempt.finished else "warn",
        message=f"The learning rate was 0 in all {zero} steps: "
        + ("nothing was learned." if attempt.finished else "nothing is being learned."),
        evidence=[
            f"the highest rate of all parameter groups is 0.0 in {zero} of {zero} steps",
            *([f"no weight changed in {attempt.weights.samples} checked steps"] if attempt.weights.samples else []),
        ],
        remedies=[
            "print optimizer.param_groups[0]['lr'] after creating the optimizer: it may be read as 0 from a configuration",
            "if this is warm-up, call the scheduler's step() after each optimizer.step()",
        ],
        corrupt_from=attempt.first_step,
    )


def _report_fall(attempt: AttemptState, limits: Limits) -> Finding | None:
    rates = attempt.rates
    enough = max(limits["steps_after"], limits["share_after"] * rates.highest.count)
    if rates.vanished_steps < enough or not has_single_optimizer(attempt) or rates.vanished_since is None:
        return None
    weight_updates = attempt.weights.weight_updates
    if (
        weight_updates is not None
        and weight_updates.step > rates.vanished_since
        and weight_updates.moved
        and not rates.highest.last
    ):
        return None
    planned_steps = [
        f"{seen.scheduler} was created for {seen.planned} calls of step()"
        for seen in rates.schedules.values()
        if seen.planned is not None
    ]
    peak = f", down from {rates.highest.highest:.3g} at its peak" if rates.highest.highest > 0.0 else ""
    return Finding(
        severity="warn",
        message=f"The learning rate has been {rates.highest.last:.3g} since step {rates.vanished_since}{peak}: the "
        f"{rates.vanished_steps} steps since then changed nothing.",
        evidence=[
            f"{rates.vanished_steps} of {rates.highest.count} steps had a rate of zero, or below 1e-8 of the highest",
            *planned_steps,
        ],
        remedies=[
            "set the scheduler's T_max or total_steps to the number of step() calls: epochs, or epochs * len(loader)",
            "or call its step() only once per epoch, if it was created for epochs",
            "or stop here: further steps change nothing",
        ],
    )


DECAY = [0.01 * (1 - n / 300) for n in range(300)]
RULE = Rule(
    kind="learning",
    on=(events.Step, events.Steps, events.AttemptEnded),
    judge=judge,
    limits=LIMITS,
    charts=("rate",),
    cases=lambda: [
        Case("never above zero", "warn", trains(), steps(*[2.3] * 100, rate=0.0)),
        Case("never above zero, to the end", "fatal", steps(*[2.3] * 60, rate=0.0), ended(0, last_step=60)),
        Case(
            "created for epochs, stepped for each batch",
            "warn",
            schedule("CosineAnnealingLR", step=1, planned=300, done=1),
            steps(*[2.0] * 300, rate=DECAY),
            steps(*[1.0] * 220, first=301, rate=0.0),
        ),
        Case(
            "a decay factor for epochs, applied to steps",
            "warn",
            steps(*[2.0] * 500, rate=[0.1 * 0.9**n for n in range(500)]),
        ),
        Case("warm-up from zero", None, steps(*[2.3] * 60, rate=[n / 6e4 for n in range(60)])),
        Case(
            "a whole first epoch at zero",
            None,
            steps(*[2.3] * 150, rate=0.0, loader=True),
            epoch(1, step=150),
            steps(*[2.0] * 50, first=151, loader=True),
        ),
        Case(
            "two epochs at zero",
            "warn",
            steps(*[2.3] * 80, rate=0.0, loader=True),
            epoch(1, step=80),
            steps(*[2.3] * 80, first=81, rate=0.0, loader=True),
            epoch(2, step=160),
            steps(2.3, first=161, rate=0.0, loader=True),
        ),
        Case(
            "reaches zero when the run ends",
            None,
            steps(*[1.0] * 300, rate=DECAY),
            steps(1.0, 1.0, first=301, rate=0.0),
            ended(0, last_step=302),
        ),
        Case(
            "a one-cycle schedule that ends far below its peak",
            None,
            steps(*[1.0] * 600, rate=[*[0.1] * 300, *[4e-7] * 300]),
        ),
        Case(
            "an optimizer that does not use the learning rate",
            None,
            weight_updates(1, checked=10, moved=9),
            steps(*[2.3] * 150, rate=0.0),
        ),
        Case("two optimizers, one of which is idle", None, steps(*[2.3] * 150, rate=0.0, other_steps={"Adam#2": 1})),
        Case("a smoke test of a few steps", None, steps(*[2.3] * 5, rate=0.0), ended(0, last_step=5)),
    ],
)

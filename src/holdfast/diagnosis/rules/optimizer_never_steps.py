"""`backward()` is called, but `optimizer.step()` never is.

**What it means.** The run finished and computed gradients many times, but nothing was updated: the model at the end is
the same as at the start.

**Why it happens.** Possible causes are gradient accumulation over more batches than an epoch has, with the gradients
cleared at the start of each epoch; a condition before `optimizer.step()` that is never true; `optimizer.step` without
parentheses; or a loop that was copied from an evaluation script.

**What to do.** Print something next to `optimizer.step()`: if it never appears, the condition before it is wrong. With
gradient accumulation, count batches over the whole run instead of per epoch, and call `optimizer.step()` at the end of
each epoch too.

**Severity.** It is always reported as `warn`, because a script may only need the gradients.

**When it is not reported.** Nothing is reported in these cases:

- The run has not finished, because gradients may first be computed for another purpose (weight importance, adversarial
  attacks, a learning-rate search).
- There is no optimizer.
- A weight changed for any reason.
- The loss fell.
"""

from __future__ import annotations

from holdfast.diagnosis.rule import Case, Finding, Rule, RunState
from holdfast.diagnosis.series import fall
from holdfast.schema import events
from holdfast.testing.histories import ended, trains

UPDATES = "weight updates"


def judge(state: RunState) -> Finding | None:
    attempt = state.attempt
    if not attempt.finished or attempt.coverage is None or UPDATES not in attempt.coverage.missing:
        return None
    change = fall(attempt.loss)
    if change is not None and change.beyond_noise:
        return None
    return Finding(
        severity="warn",
        message=f"The optimizer never stepped in {attempt.last_step} backward passes, and its weights did not change.",
        evidence=[f"{attempt.last_step} backward passes, no call of optimizer.step(), and no changed weight"],
        remedies=[
            "check the condition before optimizer.step(): it is never true",
            "with gradient accumulation, count batches over the whole run, and call optimizer.step() at the end of each epoch too",
        ],
    )


def _make_coverage(*missing: str) -> list[events.AnyEvent]:
    return [events.Coverage(at=50.0, missing=dict.fromkeys(missing, "it never stepped"), step_source="backward")]


RULE = Rule(
    kind="learning",
    on=(events.AttemptEnded,),
    judge=judge,
    in_dry_run=True,
    cases=lambda: [
        Case("the optimizer never stepped", "warn", trains(), _make_coverage(UPDATES), ended(0, last_step=480)),
        Case(
            "the command failed before the optimizer stepped",
            None,
            trains(),
            _make_coverage(UPDATES),
            ended(1, last_step=480),
        ),
        Case("the optimizer steps, or there is none", None, trains(), _make_coverage(), ended(0)),
        Case("the probe recorded nothing", None, ended(0)),
    ],
)

"""An optimizer is there, losses are computed and differentiated, and no step was ever taken.

**What it means.** The training ran to its end, its loss went backwards through the model again and again, and nothing was
updated: the model that comes out is the one that went in.

**Why it happens.** Gradient accumulation over more batches than an epoch has, with the gradients cleared at the start of each
epoch; a condition before `optimizer.step()` that never holds; a call of `optimizer.step` without its parentheses; a loop that
was copied from an evaluation.

**What to do.** Print something beside `optimizer.step()`: if it never shows, the condition before it is wrong. With accumulation,
count batches over the whole training, and step at the end of an epoch too.

**When it stays silent.** While the training runs, because gradients may be taken for something else first (importance of weights,
attacks, a learning-rate search); where there is no optimizer; where a weight changed, whoever changed it; and where the loss
fell. It only warns, since gradients may be all that was wanted.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from holdfast.diagnosis.rule import Case, Rule
from holdfast.diagnosis.series import fall
from holdfast.schema import events
from holdfast.schema.verdicts import Finding
from holdfast.testing.histories import ended, started, trains

if TYPE_CHECKING:
    from holdfast.diagnosis.run_state import RunState

UPDATES = "weight updates"


def judge(state: RunState) -> Finding | None:
    attempt = state.attempt
    said = attempt.coverage.kinds.get(UPDATES, "") if attempt.coverage is not None else ""
    if not attempt.finished or not said.startswith("not seen"):
        return None
    fell = fall(attempt.loss)
    if fell is not None and fell.beyond_noise:
        return None
    return Finding(
        rule="optimizer-never-steps",
        severity="warn",
        message=f"The optimizer never stepped in {attempt.last_step} backwards, and its weights are what they were.",
        evidence=[said.removeprefix("not seen: ")],
        remedies=[
            "look at the condition before optimizer.step(): it never holds",
            "with gradient accumulation, count batches over the whole training and step at the end of an epoch too",
        ],
    )


def _observed(text: str | None) -> list[events.AnyEvent]:
    kinds = {} if text is None else {UPDATES: text}
    return [events.Coverage(at=50.0, kinds=kinds, step_source="backward")]


_NEVER = "not seen: in 480 backwards the optimizer never stepped, and its weights did not change"

RULE = Rule(
    id="optimizer-never-steps",
    kind="learning",
    on=(events.AttemptEnded,),
    judge=judge,
    page=__doc__ or "",
    cases=[
        Case("it never stepped", [*started(), *trains(), *_observed(_NEVER), *ended(0, last_step=480)], "warn"),
        Case("it died before it could", [*started(), *trains(), *_observed(_NEVER), *ended(1, last_step=480)], None),
        Case("it steps, or there is none", [*started(), *trains(), *_observed(None), *ended(0)], None),
        Case("nothing was observed", [*started(), *ended(0)], None),
    ],
)

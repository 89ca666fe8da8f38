"""The batch size has dropped to one or two samples.

**What it means.** Each backward pass used to process many samples and now processes one or two, step after step.
Gradients are mostly noise, normalization layers have nothing to average over, and the learning rate was chosen for a
larger batch.

**Why it happens.** Common causes are a retry after an out-of-memory error that halves the batch size and never raises
it again, a trainer that miscounts devices or accumulated batches, a sampler that runs out of samples, or a batch
dimension that was transposed or squeezed away.

**What to do.** Print the shape of one batch. Set the batch size explicitly, and turn off automatic batch-size
selection.

**When it is reported.** It is reported as `warn` after 20 consecutive steps with at most two samples per backward pass,
if this is at most one eighth of the earlier batch size.

**When it is not reported.** The rule ignores the last, partial batch of an epoch, batches of varying size (token
buckets), batches that were small from the start, and a reduced batch of more than two samples.

Sources: huggingface/transformers#34204 (the batch size dropped from 50 to 1).
"""

from __future__ import annotations

from holdfast.diagnosis.rule import Case, Finding, Rule, RunState
from holdfast.schema import events
from holdfast.testing.histories import trains
from holdfast.testing.relations import steps

ID = "batch-collapsed"
LIMITS = {"steps": 20, "samples": 2}


def judge(state: RunState) -> Finding | None:
    batches = state.attempt.batches
    small = batches.small
    if not small.count:
        return None
    limits = state.get_limits(ID, LIMITS)
    now = batches.samples.last or 0.0
    if small.count < limits["steps"] or now > limits["samples"]:
        return None
    before = batches.samples.first or 0.0
    return Finding(
        severity="warn",
        step=small.since,
        message=f"Each backward pass has processed {now:g} sample{'s' if now != 1 else ''} since step {small.since}, down from {before:g}.",
        evidence=[f"{small.count} steps in a row from step {small.since} to step {small.until}"],
        remedies=[
            "print the shape of one batch: the batch dimension may have been transposed or squeezed away",
            "set the batch size explicitly, and turn off automatic batch-size selection",
        ],
    )


RULE = Rule(
    kind="learning",
    on=(events.Step, events.Steps),
    judge=judge,
    limits=LIMITS,
    cases=lambda: [
        Case(
            "the batch size drops from 50 to 1", "warn", trains(), steps(30, samples=50), steps(20, first=31, samples=1)
        ),
        Case(
            "the batch size drops from 50 to 1, with accumulation",
            "warn",
            steps(30, samples=100, backwards=2),
            steps(20, first=31, samples=2, backwards=2),
        ),
        Case(
            "a small last batch in each epoch",
            None,
            ([steps(30, first=1 + 31 * n, samples=64), steps(1, first=31 + 31 * n, samples=1)] for n in range(9)),
        ),
        Case("the batch size is halved", None, steps(30, samples=64), steps(60, first=31, samples=32)),
        Case("token buckets", None, (steps(1, first=1 + n, samples=(64, 2, 30, 5)[n % 4]) for n in range(200))),
        Case("small from the start", None, steps(90, samples=1)),
    ],
)

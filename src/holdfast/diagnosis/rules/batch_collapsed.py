"""Batches have shrunk to almost nothing.

**What it means.** A backward used to see many samples and now sees one or two, step after step. Gradients are noise,
normalisation layers have nothing to average over, and the learning rate was made for another batch.

**Why it happens.** A retry after "out of memory" that halves the batch and never raises it again; a trainer that mistakes
the number of devices or of accumulated batches; a sampler that runs dry; a dimension that was moved or dropped.

**What to do.** Print the shape of one batch. Set the batch size explicitly, and turn automatic batch sizes off.

**When it stays silent.** The last, partial batch of an epoch; batches of varying size (buckets of tokens); batches that were
small from the start; a smaller batch of more than two samples.

Sources: huggingface/transformers#34204 (50 became 1).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from holdfast.diagnosis.rule import Case, Rule
from holdfast.schema import events
from holdfast.schema.verdicts import Finding
from holdfast.testing.histories import started, trains
from holdfast.testing.relations import steps

if TYPE_CHECKING:
    from holdfast.diagnosis.run_state import RunState

ID = "batch-collapsed"
LIMITS = {"steps": 20, "samples": 2}


def judge(state: RunState) -> Finding | None:
    batches = state.attempt.batches
    small = batches.small
    if not small.count:
        return None
    limits = state.tuned(ID, LIMITS)
    now = batches.samples.last or 0.0
    if small.count < limits["steps"] or now > limits["samples"]:
        return None
    before = batches.samples.first or 0.0
    return Finding(
        rule=ID,
        severity="warn",
        step=small.since,
        message=f"A backward sees {now:g} sample{'s' if now != 1 else ''} since step {small.since}; it was {before:g} at first.",
        evidence=[f"{small.count} steps in a row from step {small.since} to step {small.until}"],
        remedies=[
            "print the shape of one batch: a dimension may have been moved or dropped",
            "set the batch size explicitly, and turn automatic batch sizes off",
        ],
    )


RULE = Rule(
    id=ID,
    kind="learning",
    on=(events.Step, events.Steps),
    judge=judge,
    limits=LIMITS,
    page=__doc__ or "",
    cases=[
        Case(
            "fifty become one", [*started(), *trains(), *steps(30, samples=50), *steps(20, first=31, samples=1)], "warn"
        ),
        Case(
            "fifty become one, over accumulated batches",
            [*started(), *steps(30, samples=100, backwards=2), *steps(20, first=31, samples=2, backwards=2)],
            "warn",
        ),
        Case(
            "the last batch of each epoch",
            [
                *started(),
                *(
                    e
                    for n in range(9)
                    for e in [*steps(30, first=1 + 31 * n, samples=64), *steps(1, first=31 + 31 * n, samples=1)]
                ),
            ],
            None,
        ),
        Case("half of it", [*started(), *steps(30, samples=64), *steps(60, first=31, samples=32)], None),
        Case(
            "buckets of tokens",
            [*started(), *(e for n in range(200) for e in steps(1, first=1 + n, samples=(64, 2, 30, 5)[n % 4]))],
            None,
        ),
        Case("small from the start", [*started(), *steps(90, samples=1)], None),
    ],
)

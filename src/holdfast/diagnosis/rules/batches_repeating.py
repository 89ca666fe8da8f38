"""The data loader yields the same batch again and again.

**What it means.** Every step trains on the same batch. The loss falls smoothly to zero, but the model has learned that
batch and nothing else.

**Why it happens.** `next(iter(loader))` inside the loop creates a new iterator each time and takes its first batch,
which is always the same if the loader does not shuffle or if the seed is reset. Other causes are a seed that is reset
inside the loop, or a dataset that returns the same item for every index.

**What to do.** Iterate over the loader (`for batch in loader`), or create one iterator outside the loop. Set seeds
once.

**When it is reported.** It is reported after 20 identical batches in a row, or after 60 if there were different batches
before.

**When it is not reported.** The rule ignores loaders that yield one batch per epoch, even if gradients are
accumulated. Reusing one fetched batch for several steps is not counted as a repetition.

**Severity.** Holdfast compares batches by a hash of a part of each batch, so the severity is never higher than `warn`.
"""

from __future__ import annotations

from holdfast.diagnosis.rule import Case, Finding, Rule, RunState
from holdfast.schema import events
from holdfast.testing.histories import trains
from holdfast.testing.relations import steps

ID = "batches-repeating"
LIMITS = {"batches": 20, "batches_later": 60}


def judge(state: RunState) -> Finding | None:
    batches = state.attempt.batches
    limits = state.get_limits(ID, LIMITS)
    same = batches.same_in_a_row
    if same < limits["batches"] or (batches.different > 1 and same < limits["batches_later"]):
        return None
    if batches.in_epoch is not None and batches.in_epoch <= 1:
        return None
    if batches.steps_in_epoch is not None and batches.steps_in_epoch <= 1:
        return None
    length = f"the last epoch had {batches.in_epoch} batches" if batches.in_epoch else "no epoch has finished"
    return Finding(
        severity="warn",
        message=f"The last {same} batches are identical: the model is trained on nothing else.",
        evidence=[
            f"{same} batches in a row have the same hash, of {batches.hashed} hashed batches; {length}",
            f"{batches.different} different batch{'es' if batches.different != 1 else ''} so far",
        ],
        remedies=[
            "iterate over the loader, or call iter(loader) once outside the loop: next(iter(loader)) starts over each time",
            "set seeds once, not in every step",
            "compare two items of the dataset: they should differ",
        ],
    )


def _epochs(count: int, batches: int, steps_per_epoch: int) -> list[events.AnyEvent]:
    """Return epochs whose first batch is always the same."""
    return [
        event
        for n in range(count)
        for event in [
            *steps(steps_per_epoch, first=1 + n * steps_per_epoch, batch="aa", backwards=batches // steps_per_epoch),
            events.Epoch(
                at=float(n), epoch=n + 1, step=(n + 1) * steps_per_epoch, seconds=1.0, batches=batches, source="loader"
            ),
        ]
    ]


def _window(first: int, hashed: int, different: int) -> list[events.AnyEvent]:
    return [
        events.Steps(at=float(first), first=first, last=first + 15, seconds=1.0, batches=hashed, different=different)
    ]


RULE = Rule(
    kind="learning",
    on=(events.Step, events.Steps),
    judge=judge,
    limits=LIMITS,
    contradicts=("loss-fell",),
    cases=lambda: [
        Case("next(iter(loader)) inside the loop", "warn", trains(), steps(20, batch="aa")),
        Case("two epochs of the same item", "warn", _epochs(2, 16, 16)),
        Case("a loader with a single batch", None, _epochs(40, 1, 1)),
        Case("an epoch of four batches that are accumulated into one step", None, _epochs(40, 4, 1)),
        Case(
            "only one batch is hashed in each group of steps",
            None,
            steps(1, batch="aa"),
            (_window(2 + 16 * n, 1, 1) for n in range(99)),
        ),
        Case("the same batch for a while", None, steps(9, batch="aa"), steps(40, first=10, batch="bb")),
        Case("batches are not observed", None, steps(90)),
    ],
)

"""Replicas of the model are no longer equal.

**What it means.** DistributedDataParallel promises that all ranks hold the same weights after every step. Here they do not:
each rank trains a model of its own, and only one of them is saved.

**Why it happens.** The forward goes through the raw module instead of the DDP object, so that gradients are never averaged.
Clipping, skipping or an `if` on one rank only. `no_sync()` around the last backward of an accumulation. Parameters that
were changed by hand on one rank.

**What to do.** Call the DDP object, not `model.module`. Decide on all ranks alike. Let the last backward before each step run
outside of `no_sync()`.

**When it stays silent.** Where no DDP object holds the weights (sharded, pipelined and federated training), for parameters
that DDP was told to ignore, and where the optimizer averages models from time to time on purpose.

Sources: deepspeed#1801; the public lists of silent training errors (the raw module called instead of DDP).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from holdfast.diagnosis.rule import Case, Rule
from holdfast.schema import events
from holdfast.schema.verdicts import Finding
from holdfast.testing.histories import started
from holdfast.testing.relations import checksums, steps, two_ranks

if TYPE_CHECKING:
    from holdfast.diagnosis.run_state import AttemptState, RunState

ID = "replicas-diverging"
LIMITS = {"comparisons": 2}


def judge(state: RunState) -> Finding | None:
    attempt = state.attempt
    weights = attempt.weights
    if not weights.diverged or (weights.equal_at or 0) > weights.diverged[-1] or _averages_models(attempt):
        return None
    since = [step for step in weights.diverged if step > (weights.equal_at or 0)]
    lasting = len(since) >= state.tuned(ID, LIMITS)["comparisons"]
    if not lasting and weights.compared < 2:
        return None
    ranks = attempt.attached.world_size if attempt.attached is not None else 0
    return Finding(
        rule=ID,
        severity="fatal" if lasting else "warn",
        step=since[0],
        corrupt_from=(weights.equal_at or 0) + 1,
        message=f"The weights of the {ranks} replicas differ at step {since[-1]}: each rank trains a model of its own.",
        evidence=[
            f"checksums of all weights differ at step{'s' if len(since) > 1 else ''} {', '.join(map(str, since[:6]))}",
            f"last equal at step {weights.equal_at}" if weights.equal_at else "they were never seen to be equal",
        ],
        remedies=[
            "call the DistributedDataParallel object in the forward, not its .module",
            "clip, skip and change weights on all ranks alike",
            "let the last backward before each step run outside of no_sync()",
        ],
    )


def _averages_models(attempt: AttemptState) -> bool:
    names = attempt.coverage.optimizers if attempt.coverage is not None else []
    return any("LocalSGD" in name or "Hierarchical" in name for name in names)


RULE = Rule(
    id=ID,
    kind="learning",
    on=(events.Checksum,),
    judge=judge,
    limits=LIMITS,
    page=__doc__ or "",
    cases=[
        Case(
            "different after the first steps",
            [*started(), *two_ranks(), *checksums(1, "a1", "b1"), *steps(1), *checksums(2, "a2", "b2")],
            "fatal",
        ),
        Case(
            "once, after they were equal",
            [*started(), *two_ranks(), *checksums(1, "a", "a"), *checksums(2, "b", "c")],
            "warn",
        ),
        Case(
            "models that are averaged on purpose",
            [
                *started(),
                *two_ranks(),
                events.Coverage(at=0.5, kinds={}, step_source="optimizer", optimizers=["PostLocalSGDOptimizer"]),
                *checksums(1, "a1", "b1"),
                *checksums(2, "a2", "b2"),
            ],
            None,
        ),
        Case(
            "equal", [*started(), *two_ranks(), *(e for s in (1, 2, 4, 8) for e in checksums(s, f"{s}", f"{s}"))], None
        ),
        Case("only one rank was heard", [*started(), *two_ranks(), *checksums(1, "a"), *checksums(2, "b")], None),
    ],
)

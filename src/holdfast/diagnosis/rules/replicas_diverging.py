"""The replicas of the model are no longer equal.

**What it means.** DistributedDataParallel (DDP) guarantees that all ranks have the same weights after every step. Here
the weights differ: each rank trains its own model, and only one of them is saved.

**Why it happens.** The forward pass calls the raw module instead of the DDP object, so gradients are never averaged. Or
one rank clips gradients, skips a step or takes a different branch. Or the last backward pass of a gradient accumulation
is inside `no_sync()`. Or parameters were changed by hand on one rank.

**What to do.** Call the DDP object, not `model.module`. Make the same decisions on all ranks. Run the last backward
pass before each step outside `no_sync()`.

**Severity.** Holdfast compares checksums of the weights at steps 1, 2, 4, 8 and so on, and at every 1000th step. If the
replicas differ in two consecutive comparisons, this is reported as `fatal`. If they differ only in the latest
comparison, it is reported as `warn`.

**When it is not reported.** Nothing is reported if no DDP object contains the weights (sharded, pipelined and federated
training), for parameters that DDP was told to ignore, or if the optimizer averages models periodically by design (local
SGD).

Sources: deepspeed#1801.
"""

from __future__ import annotations

from holdfast.diagnosis.rule import AttemptState, Case, Finding, Rule, RunState
from holdfast.schema import events
from holdfast.testing.relations import checksums, steps, two_ranks

ID = "replicas-diverging"
LIMITS = {"comparisons": 2}


def judge(state: RunState) -> Finding | None:
    attempt = state.attempt
    weights = attempt.weights
    if not weights.diverged or (weights.equal_at or 0) > weights.diverged[-1] or _averages_models(attempt):
        return None
    differing_steps = [step for step in weights.diverged if step > (weights.equal_at or 0)]
    is_lasting = len(differing_steps) >= state.get_limits(ID, LIMITS)["comparisons"]
    if not is_lasting and weights.compared < 2:
        return None
    ranks = attempt.attached.world_size if attempt.attached is not None else 0
    return Finding(
        severity="fatal" if is_lasting else "warn",
        step=differing_steps[0],
        corrupt_from=(weights.equal_at or 0) + 1,
        message=f"The weights of the {ranks} replicas differ at step {differing_steps[-1]}: each rank trains its own model.",
        evidence=[
            f"checksums of all weights differ at step{'s' if len(differing_steps) > 1 else ''} {', '.join(map(str, differing_steps[:6]))}",
            f"last equal at step {weights.equal_at}" if weights.equal_at else "they were not equal in any comparison",
        ],
        remedies=[
            "call the DistributedDataParallel object in the forward pass, not its .module",
            "clip, skip and change weights in the same way on all ranks",
            "run the last backward pass before each step outside no_sync()",
        ],
    )


def _averages_models(attempt: AttemptState) -> bool:
    names = attempt.coverage.optimizers if attempt.coverage is not None else []
    return any("LocalSGD" in name or "Hierarchical" in name for name in names)


RULE = Rule(
    kind="learning",
    on=(events.Checksum,),
    judge=judge,
    limits=LIMITS,
    cases=lambda: [
        Case(
            "different after the first steps",
            "fatal",
            two_ranks(),
            checksums(1, "a1", "b1"),
            steps(1),
            checksums(2, "a2", "b2"),
        ),
        Case(
            "different once, after they were equal", "warn", two_ranks(), checksums(1, "a", "a"), checksums(2, "b", "c")
        ),
        Case(
            "models that are averaged by design",
            None,
            two_ranks(),
            events.Coverage(at=0.5, step_source="optimizer", optimizers=["PostLocalSGDOptimizer"]),
            checksums(1, "a1", "b1"),
            checksums(2, "a2", "b2"),
        ),
        Case("equal replicas", None, two_ranks(), (checksums(s, f"{s}", f"{s}") for s in (1, 2, 4, 8))),
        Case("only one rank reported", None, two_ranks(), checksums(1, "a"), checksums(2, "b")),
    ],
)

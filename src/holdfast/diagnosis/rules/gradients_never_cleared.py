"""Gradients are never cleared between steps.

**What it means.** Each backward pass adds to the gradients that earlier steps left in `.grad`. The optimizer follows
the sum of all gradients since the start instead of the gradient of the current batch, and overshoots more and more.

**Why it happens.** `optimizer.zero_grad()` is missing, clears a different optimizer or model, or is guarded by a
condition that is never true.

**What to do.** Call `optimizer.zero_grad()` once for each `optimizer.step()`, before the backward pass or after the
step.

**Severity.** The severity is `fatal` if gradients of the previous step were left over in at least three steps and had
never been cleared before. It is `warn` if they were left over in at least three steps and cleared in no more than three
times as many.

**When it is not reported.** Occasional leftover gradients are ignored. The rule also ignores:

- accumulation over several backward passes, provided that gradients are cleared before the first backward pass after
  each step
- gradients that are assigned instead of accumulated
- several optimizers that each clear their gradients before their own backward pass
- master weights, whose `.grad` is overwritten by a copy in each step

Sources: Stack Overflow question 60335387.
"""

from __future__ import annotations

from holdfast.diagnosis.rule import AttemptState, Case, Finding, Rule, RunState
from holdfast.schema import events
from holdfast.testing.histories import trains
from holdfast.testing.relations import steps

ID = "gradients-never-cleared"
GRAPH_GRADIENTS = "gradients from the graph"
LIMITS = {"intervals": 3, "clean_for_each": 3}


def judge(state: RunState) -> Finding | None:
    attempt = state.attempt
    gradients = attempt.gradients
    limits = state.get_limits(ID, LIMITS)
    if gradients.stale_count < limits["intervals"] or _gradients_are_copied(attempt):
        return None
    newest = gradients.stale_gradients[-1]
    never = gradients.never_cleared
    if never.count >= limits["intervals"]:
        return Finding(
            severity="fatal",
            message="Gradients were never cleared: each step uses the sum of all gradients since the start.",
            evidence=[
                (
                    f"{never.count} steps, from step {never.since} to step {never.until}, began with gradients of the previous step; "
                    "no step began with cleared gradients"
                ),
                f"left over in {newest.tensors} of {newest.of} tensors, for example {', '.join(newest.names[:3])}",
            ],
            remedies=["call optimizer.zero_grad() once for each optimizer.step()"],
        )
    if newest.clean > limits["clean_for_each"] * gradients.stale_count:
        return None
    return Finding(
        severity="warn",
        message=f"Gradients are often not cleared: they were left over {gradients.stale_count} times and cleared {newest.clean} times.",
        evidence=[
            (
                f"left over at step {newest.step} in {newest.tensors} of {newest.of} tensors, "
                f"for example {', '.join(newest.names[:3])}"
            )
        ],
        remedies=["call optimizer.zero_grad() once for each optimizer.step()"],
    )


def _gradients_are_copied(attempt: AttemptState) -> bool:
    """Return True if gradients are copied to the optimizer's tensors: copies overwrite, a backward pass adds."""
    graph = attempt.weights.graph
    if graph is not None and graph.unused and graph.unused >= graph.held:
        return True
    return attempt.coverage is not None and GRAPH_GRADIENTS in attempt.coverage.missing


def _left_over(*at_steps: int, clean: int = 0) -> list[events.AnyEvent]:
    return [
        event
        for step in at_steps
        for event in [
            *steps(1, first=step - 1),
            events.StaleGradients(at=float(step), step=step, tensors=4, of=4, names=["0.weight"], clean=clean),
        ]
    ]


_COPIED = events.Coverage(at=0.5, missing={GRAPH_GRADIENTS: "they are copied"}, step_source="optimizer")

RULE = Rule(
    kind="learning",
    on=(events.StaleGradients,),
    judge=judge,
    limits=LIMITS,
    in_dry_run=True,
    charts=("gradient",),
    cases=lambda: [
        Case("zero_grad() is missing", "fatal", trains(), _left_over(2, 3, 4)),
        Case("cleared in every other step", "warn", _left_over(2, 4, clean=1), _left_over(6, clean=2)),
        Case("once after an evaluation", None, steps(200), _left_over(201, clean=200)),
        Case("now and then in a long run", None, _left_over(100, 200, 300, 400, clean=90)),
        Case("master weights", None, _COPIED, _left_over(2, 3, 4)),
        Case("accumulation over four backward passes", None, steps(50, backwards=4)),
    ],
)

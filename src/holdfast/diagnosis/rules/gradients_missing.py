"""Tensors in the optimizer get no gradient at all.

**What it means.** The optimizer steps, but `.grad` of its parameters is None: no backward pass has reached them. If
this is true for all of them, the training does nothing; if it is true for most, most of the model stays unchanged.

**Why it happens.** `loss.backward()` is missing, or runs on another model. The loss was cut off from the model by
`.detach()`, `.item()`, `.data`, `torch.no_grad()` or a round trip through NumPy. The optimizer was created with the
parameters of a model that was replaced, wrapped or moved afterwards.

**What to do.** Print `loss.grad_fn`: None means that the loss is cut off. Create the optimizer after the model is
complete and on its device.

**When it stays silent.** A few parameters without a gradient are common and healthy (unused heads, layers dropped at
random, experts that were not chosen): this is a note, unless no loss of ten steps reaches half of all tensors. One or
two steps prove nothing: a step is sometimes taken for its side effects. If several optimizers step, one of them may
legitimately wait for its turn: the rule then needs many more samples and only warns.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from holdfast.diagnosis.rule import Case, Rule
from holdfast.schema import events
from holdfast.schema.verdicts import Finding
from holdfast.testing.histories import ended, started, trains
from holdfast.testing.relations import sample, steps

if TYPE_CHECKING:
    from holdfast.diagnosis.run_state import AttemptState, RunState

ID = "gradients-missing"
LIMITS = {
    "samples": 3,
    "samples_without_a_loss": 4,
    "samples_later": 20,
    "samples_with_gaps": 3,
    "steps_for_some": 20,
    "part_that_is_most": 0.5,
}


def judge(state: RunState) -> Finding | None:
    gradients = state.attempt.gradients
    if gradients.missing.count:
        return _report_all(state)
    if not gradients.fewest_missing:
        return None
    return _report_most(state) or _report_some(state)


def _report_all(state: RunState) -> Finding | None:
    attempt = state.attempt
    missing = attempt.gradients.missing
    limits = state.get_limits(ID, LIMITS)
    from_the_start = not attempt.gradients.samples_with_some and not attempt.gradients.others
    if from_the_start:
        min_samples = limits["samples" if attempt.loss.count >= limits["samples"] - 1 else "samples_without_a_loss"]
    else:
        min_samples = limits["samples_later"]
    if missing.count < min_samples:
        return None
    latest = attempt.gradients.latest
    count = latest.missing if latest is not None else 0
    backward = "a backward pass ran in these steps" if attempt.loss.count else "no backward pass was observed"
    return Finding(
        rule=ID,
        severity="fatal" if from_the_start else "warn",
        step=missing.since,
        message=f"None of the {count} tensors in the optimizer gets a gradient: its steps change nothing.",
        evidence=[
            f"{missing.count} samples in a row, from step {missing.since} to step {missing.until}, found no gradient; {backward}",
            *_names(attempt),
        ],
        remedies=[
            "print loss.grad_fn: None means that the loss is cut off from the model (detach, item, data, no_grad, NumPy)"
            if attempt.loss.count
            else "call loss.backward() before optimizer.step()",
            "create the optimizer after the model is complete, wrapped and on its device",
        ],
    )


def _report_most(state: RunState) -> Finding | None:
    """Compare the tensors that the graphs of ten steps reach with those in the optimizer."""
    attempt = state.attempt
    graph = attempt.weights.graph
    if graph is None or graph.unused is None or graph.outside or attempt.gradients.others:
        return None
    if graph.unused < state.get_limits(ID, LIMITS)["part_that_is_most"] * graph.held:
        return None
    return Finding(
        rule=ID,
        severity="warn",
        step=graph.step,
        message=f"No loss reaches {graph.unused} of the {graph.held} tensors in the optimizer: most of the model is not trained.",
        evidence=[
            f"in the graphs of all losses up to step {graph.step}",
            f"not reached: {', '.join(graph.held_not_used[:5])}",
        ],
        remedies=[
            "find what cuts the model in two: detach, item, data, no_grad, NumPy",
            "if that part is meant to stay fixed, pass only the trainable parameters to the optimizer",
        ],
    )


def _report_some(state: RunState) -> Finding | None:
    attempt = state.attempt
    gradients = attempt.gradients
    limits = state.get_limits(ID, LIMITS)
    samples = 1 if attempt.ended is not None else limits["samples_with_gaps"]
    if gradients.samples_with_some < samples or attempt.steps < limits["steps_for_some"]:
        return None
    return Finding(
        rule=ID,
        severity="note",
        message=f"{gradients.fewest_missing} tensors in the optimizer never got a gradient.",
        evidence=[
            f"{gradients.samples_with_some} samples, each with {gradients.fewest_missing} or more tensors without a gradient",
            *_names(attempt),
        ],
        remedies=[
            "leave them out of the optimizer if they are not meant to be trained; otherwise find out why no loss uses them"
        ],
    )


def _names(attempt: AttemptState) -> list[str]:
    names = attempt.weights.no_gradient
    return [f"without a gradient: {', '.join(names[:5])}"] if names else []


def _graph(unused: int) -> list[events.AnyEvent]:
    names = [f"encoder.{n}.weight" for n in range(min(unused, 8))]
    return [events.Graph(at=10.0, step=10, used=10 - unused, held=10, held_not_used=names, outside=0, unused=unused)]


_TWO_OPTIMIZERS = events.Step(at=1.0, step=1, seconds=0.1, loss=1.0, other_steps={"SGD#2": 1})

RULE = Rule(
    id=ID,
    kind="learning",
    on=(events.Gradients, events.Graph, events.AttemptEnded),
    judge=judge,
    limits=LIMITS,
    page=__doc__ or "",
    cases=[
        Case(
            "the loss belongs to another model",
            [
                *started(),
                *trains(),
                *(e for s in (1, 2, 3) for e in [*sample(s, norm=0.0, tensors=0, missing=4), *steps(1, first=s)]),
            ],
            "fatal",
        ),
        Case(
            "backward() is missing",
            [
                *started(),
                *(e for s in range(1, 6) for e in [*sample(s, tensors=0, missing=4), *steps(1, first=s, loss=None)]),
            ],
            "fatal",
        ),
        Case(
            "gradients disappear during training",
            [*started(), *sample(1), *steps(60), *(e for s in range(61, 81) for e in sample(s, tensors=0, missing=4))],
            "warn",
        ),
        Case("cut in two by detach()", [*started(), *sample(1, missing=8, tensors=2), *steps(9), *_graph(8)], "warn"),
        Case(
            "an unused head",
            [*started(), *steps(30), *(e for s in (1, 10, 30) for e in sample(s, missing=2))],
            "note",
        ),
        Case(
            "an unused head in a short run",
            [*started(), *sample(1, missing=2), *steps(25), *ended(0, last_step=25)],
            "note",
        ),
        Case(
            "one of two optimizers waits for its turn",
            [
                *started(),
                _TWO_OPTIMIZERS,
                *(e for s in range(2, 9) for e in [*sample(s, tensors=0, missing=4), *steps(1, first=s)]),
            ],
            None,
        ),
        Case(
            "two steps taken for their side effects",
            [*started(), *(e for s in (1, 2) for e in sample(s, tensors=0, missing=4)), *sample(3), *steps(40)],
            None,
        ),
        Case(
            "layers dropped at random",
            [*started(), *steps(50), *sample(1, missing=2), *sample(20), *sample(50, missing=3)],
            None,
        ),
    ],
)

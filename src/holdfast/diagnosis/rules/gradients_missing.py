"""Parameters in the optimizer receive no gradient.

**What it means.** The optimizer steps, but `.grad` of its parameters is None: no backward pass has reached them. If
this is true for all parameters, training has no effect; if it is true for most of them, most of the model stays
unchanged.

**Why it happens.** Either `loss.backward()` is missing or is called for a different model, or the loss was detached
from the autograd graph by `.detach()`, `.item()`, `.data`, `torch.no_grad()` or a conversion to NumPy and back, or the
optimizer was created with the parameters of a model that was replaced, wrapped or moved afterwards.

**What to do.** Print `loss.grad_fn`: `None` means that the loss is not connected to the autograd graph. Create the
optimizer after the model is complete and on its device.

**Severity.** Holdfast checks the gradients only in some of the steps.

- `fatal` if no parameter has received a gradient since training started, and at least three steps were checked (four if
  no backward pass was observed).
- `warn` if gradients disappear later, in 20 consecutive checked steps. With several optimizers, the severity
  is `warn` and 20 steps are required even if there never was a gradient, because one optimizer may be idle for a while.
- `warn` if at least half of the parameters are not part of the autograd graph of any loss in the first ten steps.
- `note` if a few parameters never receive a gradient. This is common (unused heads, layers dropped at random, experts
  that were not chosen).

**When it is not reported.** One or two steps without gradients are ignored: some code calls `optimizer.step()` once,
for example to create the optimizer state.
"""

from __future__ import annotations

from holdfast.diagnosis.rule import AttemptState, Case, Finding, Rule, RunState
from holdfast.schema import events
from holdfast.testing.histories import ended, trains
from holdfast.testing.relations import sample, steps

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
        severity="fatal" if from_the_start else "warn",
        step=missing.since,
        message=f"None of the {count} parameters in the optimizer receives a gradient: its steps change nothing.",
        evidence=[
            f"no gradient in {missing.count} consecutive checks, from step {missing.since} to step {missing.until}; {backward}",
            *_names(attempt),
        ],
        remedies=[
            "print loss.grad_fn: None means that the loss is not connected to the autograd graph (detach, item, data, no_grad, NumPy)"
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
        severity="warn",
        step=graph.step,
        message=f"{graph.unused} of the {graph.held} parameters in the optimizer do not contribute to any loss: most of the model is not trained.",
        evidence=[
            f"checked in the autograd graphs of all losses up to step {graph.step}",
            f"not part of any graph: {', '.join(graph.held_not_used[:5])}",
        ],
        remedies=[
            "find the operation that detaches a part of the model: detach, item, data, no_grad, NumPy",
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
        severity="note",
        message=f"{gradients.fewest_missing} parameters in the optimizer never received a gradient.",
        evidence=[
            f"in {gradients.samples_with_some} checks, at least {gradients.fewest_missing} parameters had no gradient",
            *_names(attempt),
        ],
        remedies=[
            "if they are not meant to be trained, do not pass them to the optimizer; otherwise find out why no loss uses them"
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
    kind="learning",
    on=(events.Gradients, events.Graph, events.AttemptEnded),
    judge=judge,
    limits=LIMITS,
    in_dry_run=True,
    charts=("gradient",),
    cases=lambda: [
        Case(
            "the loss belongs to a different model",
            "fatal",
            trains(),
            ([sample(s, norm=0.0, tensors=0, missing=4), steps(1, first=s)] for s in (1, 2, 3)),
        ),
        Case(
            "backward() is missing",
            "fatal",
            ([sample(s, tensors=0, missing=4), steps(1, first=s, loss=None)] for s in range(1, 6)),
        ),
        Case(
            "gradients disappear during training",
            "warn",
            sample(1),
            steps(60),
            (sample(s, tensors=0, missing=4) for s in range(61, 81)),
        ),
        Case("most of the model is detached by detach()", "warn", sample(1, missing=8, tensors=2), steps(9), _graph(8)),
        Case("an unused head", "note", steps(30), (sample(s, missing=2) for s in (1, 10, 30))),
        Case("an unused head in a short run", "note", sample(1, missing=2), steps(25), ended(0, last_step=25)),
        Case(
            "one of two optimizers is idle for a while",
            None,
            _TWO_OPTIMIZERS,
            ([sample(s, tensors=0, missing=4), steps(1, first=s)] for s in range(2, 9)),
        ),
        Case(
            "two steps without gradients at the start",
            None,
            (sample(s, tensors=0, missing=4) for s in (1, 2)),
            sample(3),
            steps(40),
        ),
        Case("layers dropped at random", None, steps(50), sample(1, missing=2), sample(20), sample(50, missing=3)),
    ],
)

"""The loss uses parameters that no optimizer holds.

**What it means.** Gradients are computed for parameters that nobody updates. Where the optimizer in turn holds only tensors
that no loss uses, it trains a model that is not the one in use: nothing is learned at all.

**Why it happens.** The optimizer was made before the model was wrapped, moved, re-initialised or got its new head, and holds
the old parameters. Or some layers were left out of `parameters()`: modules in a plain list or dictionary instead of
`ModuleList` or `ModuleDict`, a loss with parameters of its own.

**What to do.** Make the optimizer last, from the model that computes the loss. What is meant to stay fixed gets
`requires_grad_(False)`: that also saves the time for its gradients.

**When it stays silent.** Parameters that an optimizer holds which has not stepped yet; frozen ones. A network in evaluation
mode that the loss only looks through (a perceptual loss, a teacher) is a note. A head that is trained over a backbone which
keeps `requires_grad` is common: that is a warning. Only where the optimizer holds nothing that any loss uses is it fatal.

Sources: huggingface/accelerate#2665; modules in plain lists are a question as old as torch.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from holdfast.diagnosis.rule import Case, Rule
from holdfast.schema import events
from holdfast.schema.verdicts import Finding, Severity
from holdfast.testing.histories import started, trains
from holdfast.testing.relations import steps, weight_updates

if TYPE_CHECKING:
    from holdfast.diagnosis.run_state import RunState

ID = "weights-outside-optimizer"


def judge(state: RunState) -> Finding | None:
    weights = state.attempt.weights
    graph = weights.graph
    if graph is None or not graph.used_not_held:
        return None
    outside = graph.outside if graph.outside is not None else len(graph.used_not_held)
    unused = graph.unused if graph.unused is not None else len(graph.held_not_used)
    stale = bool(unused) and unused >= graph.held and not weights.most_moved
    in_view = outside - graph.outside_in_eval
    severity: Severity = "fatal" if stale else ("warn" if in_view > 0 else "note")
    if stale:
        message = (
            f"The loss uses none of the {graph.held} tensors that the optimizer holds, but {outside} others: "
            "the optimizer trains a model that is not in use."
        )
    else:
        message = f"The loss uses {outside} parameter tensors that no optimizer holds: they are never updated."
    return Finding(
        rule=ID,
        severity=severity,
        step=graph.step,
        message=message,
        evidence=[
            f"used by the loss, held by no optimizer: {', '.join(graph.used_not_held[:5])}",
            *([f"held by an optimizer, used by no loss: {', '.join(graph.held_not_used[:5])}"] if unused else []),
            *([f"{graph.outside_in_eval} of them are in evaluation mode"] if graph.outside_in_eval else []),
        ],
        remedies=[
            "make the optimizer after the model is complete (its head replaced, wrapped, moved), from that model"
            if unused
            else "give them to the optimizer: keep layers in ModuleList or ModuleDict, add the loss's own parameters",
            "if they are meant to stay fixed, say so: requires_grad_(False)",
        ],
    )


def _graph(outside: list[str], unused: list[str], *, held: int = 4, in_eval: int = 0) -> list[events.AnyEvent]:
    counts: dict[str, Any] = {"outside": len(outside), "unused": len(unused), "outside_in_eval": in_eval}
    return [
        events.Graph(at=3.0, step=3, used=4, held=held, used_not_held=outside, held_not_used=unused, **counts),
    ]


RULE = Rule(
    id=ID,
    kind="learning",
    on=(events.Graph,),
    judge=judge,
    page=__doc__ or "",
    cases=[
        Case(
            "an optimizer of stale parameters",
            [*started(), *trains(), *steps(2), *_graph(["fc.weight", "fc.bias"], ["a", "b", "c", "d"])],
            "fatal",
        ),
        Case("a head that was replaced", [*started(), *_graph(["fc.weight"], ["group 0, tensor 3 [10, 5]"])], "warn"),
        Case("a head over a backbone that keeps requires_grad", [*started(), *_graph(["body.0.weight"], [])], "warn"),
        Case("a perceptual loss", [*started(), *_graph(["VGG.0.weight", "VGG.0.bias"], [], in_eval=2)], "note"),
        Case(
            "its tensors move all the same",
            [*started(), *weight_updates(1), *_graph(["fc.weight"], ["a", "b", "c", "d"])],
            "warn",
        ),
        Case("an unused head", [*started(), *_graph([], ["aux.weight"])], None),
        Case("all is used and held", [*started(), *_graph([], [])], None),
    ],
)

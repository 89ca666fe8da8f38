"""The loss uses parameters that are not in any optimizer.

**What it means.** Gradients are computed for parameters that are never updated. If the optimizer contains only tensors
that no loss uses, it trains a model that is not in use, and nothing is learned at all.

**Why it happens.** The optimizer was created before the model was wrapped, moved, re-initialized or given its new head,
and contains the old parameters. Or some layers are missing from `parameters()`, because modules are in a plain list or
dictionary instead of `ModuleList` or `ModuleDict`, or because the loss has its own parameters.

**What to do.** Create the optimizer last, from the model that computes the loss. Call `requires_grad_(False)` on
parameters that must stay fixed; this also avoids computing their gradients.

**Severity.** The severity depends on the parameters:

- It is reported as `fatal` if no loss uses any tensor of the optimizer and none of the checked weights has changed.
- It is reported as `warn` if some of the parameters outside the optimizer are in training mode. It is never more than
  that if only a head is trained on a backbone that keeps `requires_grad=True`, which is common.
- It is reported as a `note` if all of them belong to networks in evaluation mode that the loss only passes through (a
  perceptual loss, a teacher).

**When it is not reported.** Nothing is reported for parameters of an optimizer that has not stepped yet, or for frozen
parameters (`requires_grad=False`).

Sources: huggingface/accelerate#2665.
"""

from __future__ import annotations

from typing import Any

from holdfast.diagnosis.rule import Case, Finding, Rule, RunState, Severity
from holdfast.schema import events
from holdfast.testing.histories import trains
from holdfast.testing.relations import steps, weight_updates


def judge(state: RunState) -> Finding | None:
    weights = state.attempt.weights
    graph = weights.graph
    if graph is None or not graph.used_not_held:
        return None
    outside = graph.outside if graph.outside is not None else len(graph.used_not_held)
    unused = graph.unused if graph.unused is not None else len(graph.held_not_used)
    is_stale = bool(unused) and unused >= graph.held and not weights.most_moved
    in_training_mode = outside - graph.outside_in_eval
    severity: Severity = "fatal" if is_stale else ("warn" if in_training_mode > 0 else "note")
    if is_stale:
        message = (
            f"The loss uses none of the {graph.held} tensors in the optimizer, but {outside} others: "
            "the optimizer trains a model that is not in use."
        )
    else:
        message = f"The loss uses {outside} parameter tensors that are not in any optimizer: they are never updated."
    return Finding(
        severity=severity,
        step=graph.step,
        message=message,
        evidence=[
            f"used by the loss, not in any optimizer: {', '.join(graph.used_not_held[:5])}",
            *([f"in an optimizer, not used by any loss: {', '.join(graph.held_not_used[:5])}"] if unused else []),
            *([f"{graph.outside_in_eval} of them are in evaluation mode"] if graph.outside_in_eval else []),
        ],
        remedies=[
            "create the optimizer from the complete model, after its head is replaced and it is wrapped and moved"
            if unused
            else "add them to the optimizer: keep layers in ModuleList or ModuleDict, and add the loss's own parameters",
            "if they must stay fixed, freeze them: requires_grad_(False)",
        ],
    )


def _make_graph(outside: list[str], unused: list[str], *, held: int = 4, in_eval: int = 0) -> list[events.AnyEvent]:
    counts: dict[str, Any] = {"outside": len(outside), "unused": len(unused), "outside_in_eval": in_eval}
    return [
        events.Graph(at=3.0, step=3, used=4, held=held, used_not_held=outside, held_not_used=unused, **counts),
    ]


RULE = Rule(
    kind="learning",
    on=(events.Graph,),
    judge=judge,
    in_dry_run=True,
    cases=lambda: [
        Case(
            "an optimizer with stale parameters",
            "fatal",
            trains(),
            steps(2),
            _make_graph(["fc.weight", "fc.bias"], ["a", "b", "c", "d"]),
        ),
        Case("a head that was replaced", "warn", _make_graph(["fc.weight"], ["group 0, tensor 3 [10, 5]"])),
        Case("a head on a backbone that keeps requires_grad", "warn", _make_graph(["body.0.weight"], [])),
        Case("a perceptual loss", "note", _make_graph(["VGG.0.weight", "VGG.0.bias"], [], in_eval=2)),
        Case(
            "the optimizer's tensors change nevertheless",
            "warn",
            weight_updates(1),
            _make_graph(["fc.weight"], ["a", "b", "c", "d"]),
        ),
        Case("an unused head", None, _make_graph([], ["aux.weight"])),
        Case("all parameters are used and in the optimizer", None, _make_graph([], [])),
    ],
)

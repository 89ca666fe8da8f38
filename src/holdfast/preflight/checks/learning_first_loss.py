"""Does the first loss have the value expected of an untrained model?

**What it checks.** Compares the loss of the first batch with the theoretical value for an untrained model: the logarithm of the number
of classes for cross entropy, the logarithm of 2 for binary cross entropy, and the mean square of the targets for the squared error. A
loss below the theoretical value passes: the model is pretrained, or its biases were initialized with the class frequencies.

**Why.** If the first loss is many times higher, the outputs are far too large, because of unscaled inputs, uninitialized weights, or
targets on a different scale. At best this wastes epochs.

**What to do.** Scale inputs and targets, and check the weights of the last layer.

**Severity.** `warn`, because some models start badly and still learn. If the loss falls within the few steps of the dry run, the
finding is only a `note`, and the check passes.

**When it is not checked.** The result is `not checked` if the loss function has no known theoretical value, or if the loss contains
other terms.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from holdfast.preflight.case_dry_runs import on_cpu
from holdfast.preflight.checks.check import Answer, Case, Check, CheckContext, NotChecked, finding
from holdfast.preflight.dry_run.cache import SECONDS, get_dry_run_with_steps

if TYPE_CHECKING:
    from holdfast.preflight.dry_run.run import DryRunResult

MAX_RATIO = 4.0
"""A first loss up to this many times the theoretical value passes."""
FALLEN_SHARE = 0.7
"""A loss below this share of the first loss has clearly fallen."""


def run(context: CheckContext) -> Answer:
    dry_run = get_dry_run_with_steps(context)
    event = dry_run.first("first-loss")
    if event is None:
        raise NotChecked("no backward pass was observed")
    if "why" in event:
        raise NotChecked(str(event["why"]))
    seen, expected = float(event["seen"]), float(event["expected"])
    about = f"the {event['kind']} of an untrained model"
    if "classes" in event:
        about += f" with {event['classes']} classes"
    message = f"the first loss is {seen:.4g}; {about} is near {expected:.4g}"
    if math.isfinite(seen) and seen <= MAX_RATIO * expected + 1.0:
        return Answer(message)
    return Answer(
        message,
        (
            finding(
                "note" if _is_falling(dry_run) else "warn",
                f"The first loss is {seen:.4g}, but {about} should be near {expected:.4g}: the outputs are far too large.",
                evidence=[message],
                remedies=[
                    "scale the inputs (images to 0..1 or mean 0), and for a regression the targets",
                    "check how the weights of the last layer are initialized",
                ],
                confidence="likely",
            ),
        ),
    )


def _is_falling(dry_run: DryRunResult) -> bool:
    """Return whether the loss falls within the few steps of the dry run."""
    losses = [float(line["loss"]) for line in dry_run.select("dry-run-step") if line["loss"] is not None]
    return bool(losses) and min(losses) < FALLEN_SHARE * losses[0]


def _first(seen: float, expected: float, kind: str = "cross entropy") -> dict[str, object]:
    return {"event": "first-loss", "kind": kind, "seen": seen, "expected": expected, "classes": 10}


CHECK = Check(
    kind="learning",
    run=run,
    needs=("command",),
    seconds=SECONDS,
    cases=lambda: (
        Case("the first loss is near the theoretical value", on_cpu(_first(2.35, 2.303)), "passed"),
        Case("a pretrained model", on_cpu(_first(0.2, 2.303)), "passed"),
        Case("images with values from 0 to 255", on_cpu(_first(41.0, 2.303)), "warn"),
        Case(
            "a high first loss that falls quickly (tied embeddings)",
            on_cpu(_first(50.0, 3.7), losses=[50.0, 41.0, 30.0]),
            "passed",
        ),
        Case("a custom loss", on_cpu({"event": "first-loss", "why": "none"}), "not checked"),
    ),
)

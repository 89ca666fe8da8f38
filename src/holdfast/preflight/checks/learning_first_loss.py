"""Is the first loss what an untrained model's should be?

**What it asks.** The loss of the very first batch, beside what theory says of a model that knows nothing: the logarithm of the number of
classes for a cross entropy, of 2 for a binary one, the mean square of the targets for a squared error.

**Why.** A first loss many times higher means outputs that are far too large: inputs that are not scaled, weights that are not
initialised, targets of another scale. It costs epochs at best.

**What to do.** Scale inputs and targets, look at the last layer's weights. It is never fatal: some models begin badly and learn; where the
loss comes down within the few steps of the dry run, it is a note.

**When it stays silent.** Where the loss is none that theory knows, or has other terms in it. A loss below theory is a model that knows
something already, or has been given how often each class occurs.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from holdfast.preflight.case_dry_runs import on_cpu, recorded_dry_run
from holdfast.preflight.checks.check import Answer, Case, Check, NotChecked, finding
from holdfast.preflight.dry_run.cache import SECONDS, get_dry_run_with_steps

if TYPE_CHECKING:
    from holdfast.preflight.checks.check import CheckContext
    from holdfast.preflight.dry_run.run import DryRunResult

ID = "learning-first-loss"
TIMES = 4.0
"""How many times theory a first loss may be."""
FALLEN = 0.7
"""Of the first loss: what it has come down to where that is plain to see."""


def run(context: CheckContext) -> Answer:
    dry_run = get_dry_run_with_steps(context)
    told = dry_run.one("first-loss")
    if told is None:
        raise NotChecked("no backward was seen")
    if "why" in told:
        raise NotChecked(str(told["why"]))
    seen, expected = float(told["seen"]), float(told["expected"])
    about = f"the {told['kind']} of an untrained model"
    if "classes" in told:
        about += f" with {told['classes']} classes"
    message = f"the first loss is {seen:.4g}; {about} is near {expected:.4g}"
    if math.isfinite(seen) and seen <= TIMES * expected + 1.0:
        return Answer(message)
    return Answer(
        message,
        (
            finding(
                ID,
                "note" if _falls(dry_run) else "warn",
                f"The first loss is {seen:.4g}, and {about} should be near {expected:.4g}: its outputs are far too large.",
                evidence=[message],
                remedies=[
                    "scale the inputs (images to 0..1 or mean 0), and for a regression the targets",
                    "look at how the last layer's weights are initialised",
                ],
                confidence="likely",
            ),
        ),
    )


def _falls(dry_run: DryRunResult) -> bool:
    """It finds its way down by itself within the few steps of the dry run."""
    losses = [float(line["loss"]) for line in dry_run.of("dry-run-step") if line["loss"] is not None]
    return bool(losses) and min(losses) < FALLEN * losses[0]


def _first(seen: float, expected: float, kind: str = "cross entropy") -> dict[str, object]:
    return {"event": "first-loss", "kind": kind, "seen": seen, "expected": expected, "classes": 10}


CHECK = Check(
    id=ID,
    kind="learning",
    run=run,
    page=__doc__ or "",
    needs=("command",),
    seconds=SECONDS,
    cases=(
        Case("ten classes", on_cpu(recorded_dry_run(_first(2.35, 2.303))), "passed"),
        Case("it knows something", on_cpu(recorded_dry_run(_first(0.2, 2.303))), "passed"),
        Case("images of 0 to 255", on_cpu(recorded_dry_run(_first(41.0, 2.303))), "warn"),
        Case(
            "tied embeddings that come down",
            on_cpu(recorded_dry_run(_first(50.0, 3.7), losses=[50.0, 41.0, 30.0])),
            "passed",
        ),
        Case("a loss of its own", on_cpu(recorded_dry_run({"event": "first-loss", "why": "none"})), "not checked"),
    ),
)

"""Does learning depend on the inputs?

**What it checks.** The dry run overfits one batch twice, from the same weights and random state: once with its real inputs, and once
with its inputs set to 0. If both loss curves are the same, the inputs do not matter.

**Why.** If images become 0 through integer division, or a mask hides all inputs, the loss still falls, but only to the value that a
constant prediction would reach. The model is useless.

**What to do.** Print the inputs that the model receives.

**Severity.** `fatal` if the loss curves are identical, `warn` if they are nearly identical. Holdfast identifies the inputs by their key
(such as `images`) or by their position (the first element of the batch). If it has to guess, it only warns.

**When it is not checked.** The result is `not checked` if the loss does not change when one batch is repeated (see learning-one-batch),
if the script does not use a DataLoader, or if it stops reading from the DataLoader after its first steps.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from holdfast.diagnosis.overfit import loss_curve, same_curve
from holdfast.preflight.case_dry_runs import FALLING, curve, experiments, on_cpu
from holdfast.preflight.checks.check import Answer, Case, Check, CheckContext, NotChecked, finding
from holdfast.preflight.dry_run.cache import SECONDS, get_dry_run_with_experiments

if TYPE_CHECKING:
    from collections.abc import Mapping


MIN_LENGTH = 2


def run(context: CheckContext) -> Answer:
    dry_run = get_dry_run_with_experiments(context)
    if (dry_run.first("experiments") or {}).get("drawn"):
        raise NotChecked("the script uses no DataLoader, so it is unknown which part of a batch is the input")
    zeroed = next((line for line in dry_run.select("curve") if line["mode"] == "zeroed"), None)
    if zeroed is None and not any(line["given"] for line in dry_run.select("curve")):
        raise NotChecked(
            "the script stops reading its DataLoader after its first steps, so its inputs cannot be set to 0"
        )
    if zeroed is None:
        raise NotChecked("there is nothing to compare: the loss does not change at all, or there was too little time")
    real = next(
        line
        for line in dry_run.select("curve")
        if line["mode"] == "again" and float(line["factor"]) == zeroed["factor"]
    )
    real_losses, zeroed_losses = (_get_losses(line) for line in (real, zeroed))
    if len(zeroed_losses) < MIN_LENGTH:
        raise NotChecked("too few steps were completed with the inputs at 0")
    real_curve, zeroed_curve = loss_curve(real_losses), loss_curve(zeroed_losses[: len(real_losses)])
    message = f"one batch: {real_curve.first:.4g} to {real_curve.late:.4g}; with its inputs at 0: {zeroed_curve.first:.4g} to {zeroed_curve.late:.4g}"
    similarity = same_curve(real_losses, zeroed_losses)
    if similarity == "different":
        return Answer(message)
    certain = bool((dry_run.first("experiments") or {}).get("input_is_certain"))
    already = bool(zeroed.get("zero_already"))
    what = (
        "The inputs of the first batch are already all 0."
        if already
        else f"The loss curve is {'exactly ' if similarity == 'equal' else 'nearly '}the same when all inputs are 0: "
        "learning does not depend on the inputs."
    )
    return Answer(
        message,
        (
            finding(
                "fatal" if similarity == "equal" and certain and not (already and real_curve.clear) else "warn",
                what,
                evidence=[message],
                remedies=[
                    "print the inputs just before the forward pass: an integer division, a mask or a wrong name can make them 0",
                    "check what the DataLoader yields, and which part of it the training loop uses",
                ],
                confidence="proven" if similarity == "equal" and certain else "likely",
            ),
        ),
    )


def _get_losses(line: Mapping[str, Any]) -> list[float]:
    return [float(loss) for loss in line["losses"]]


_BIASED = [2.3 - 0.02 * n for n in range(24)]

CHECK = Check(
    kind="learning",
    run=run,
    needs=("command",),
    seconds=SECONDS,
    cases=lambda: (
        Case(
            "the model learns less without inputs",
            on_cpu(experiments(), curve(FALLING), curve(_BIASED, mode="zeroed")),
            "passed",
        ),
        Case("inputs do not matter", on_cpu(experiments(), curve(FALLING), curve(FALLING, mode="zeroed")), "fatal"),
        Case(
            "inputs do not matter, but Holdfast had to guess which tensor is the input",
            on_cpu(experiments(certain=False), curve(FALLING), curve(FALLING, mode="zeroed")),
            "warn",
        ),
        Case(
            "inputs hardly matter",
            on_cpu(experiments(), curve(FALLING), curve([x + 0.001 for x in FALLING], mode="zeroed")),
            "warn",
        ),
        Case(
            "the inputs of the first batch are 0",
            on_cpu(experiments(), curve(FALLING), curve(FALLING, mode="zeroed", zero_already=True)),
            "warn",
        ),
        Case(
            "the loss is NaN without inputs",
            on_cpu(experiments(), curve(FALLING), curve([2.4, float("nan")], mode="zeroed")),
            "passed",
        ),
        Case(
            "the script reads only one batch and keeps it",
            on_cpu(experiments(), curve(FALLING, given=0)),
            "not checked",
        ),
        Case("the loss is constant", on_cpu(experiments(), curve([2.3] * 24)), "not checked"),
    ),
)

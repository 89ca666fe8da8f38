"""Does what is learned depend on the inputs?

**What it asks.** In the dry run one batch is learned by heart twice from the same weights and random numbers: as it is, and with its
inputs set to 0. If the loss goes the same way both times, the inputs do not matter.

**Why.** Images that are divided to 0 as whole numbers, a collate function that gives the same thing always, a mask over everything:
the loss falls all the same, to what can be said without looking, and the model is worth nothing.

**What to do.** Print the inputs where the model gets them. Fatal is a loss that is the same in every digit; one that is nearly so is
a warning.

**When it stays silent.** Where one batch cannot be learned by heart in the first place: see learning-one-batch. What the input is, is
taken from its name, or from its place: the first of a batch; where that is a guess, the finding is a warning.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from holdfast.diagnosis.overfit import loss_curve, same_curve
from holdfast.preflight.case_dry_runs import FALLING, curve, experiments, on_cpu, recorded_dry_run
from holdfast.preflight.checks.check import Answer, Case, Check, NotChecked, finding
from holdfast.preflight.dry_run.cache import SECONDS, get_dry_run_with_experiments

if TYPE_CHECKING:
    from collections.abc import Mapping

    from holdfast.preflight.checks.check import CheckContext

ID = "learning-depends-on-data"
MIN_LENGTH = 2


def run(context: CheckContext) -> Answer:
    dry_run = get_dry_run_with_experiments(context)
    if (dry_run.one("experiments") or {}).get("drawn"):
        raise NotChecked("it reads no DataLoader: what of a batch is the input is not known")
    zeroed = next((line for line in dry_run.of("curve") if line["mode"] == "zeroed"), None)
    if zeroed is None and not any(line["given"] for line in dry_run.of("curve")):
        raise NotChecked("it reads its loader no more after its first steps: its inputs cannot be set to 0")
    if zeroed is None:
        raise NotChecked("the loss does not move at all, or time was short: there is nothing to compare with")
    real = next(
        line for line in dry_run.of("curve") if line["mode"] == "again" and float(line["factor"]) == zeroed["factor"]
    )
    one, other = (_losses(line) for line in (real, zeroed))
    if len(other) < MIN_LENGTH:
        raise NotChecked("too few steps were made with the inputs at 0")
    here, there = loss_curve(one), loss_curve(other[: len(one)])
    message = (
        f"one batch: {here.first:.4g} to {here.late:.4g}; with its inputs at 0: {there.first:.4g} to {there.late:.4g}"
    )
    how = same_curve(one, other)
    if how == "different":
        return Answer(message)
    certain = bool((dry_run.one("experiments") or {}).get("input_is_certain"))
    already = bool(zeroed.get("zero_already"))
    what = (
        "The inputs of the first batch are all 0 already."
        if already
        else f"The loss goes {'exactly ' if how == 'equal' else 'nearly '}the same way when all inputs are 0: "
        "what is learned does not depend on them."
    )
    return Answer(
        message,
        (
            finding(
                ID,
                "fatal" if how == "equal" and certain and not (already and here.clear) else "warn",
                what,
                evidence=[message],
                remedies=[
                    "print the inputs just before the model gets them: whole-number division, a mask or a wrong name empties them",
                    "look at what the loader yields, and at what of it the loop uses",
                ],
                confidence="proven" if how == "equal" and certain else "likely",
            ),
        ),
    )


def _losses(line: Mapping[str, Any]) -> list[float]:
    return [float(loss) for loss in line["losses"]]


_BIASED = [2.3 - 0.02 * n for n in range(24)]

CHECK = Check(
    id=ID,
    kind="learning",
    run=run,
    page=__doc__ or "",
    needs=("command",),
    seconds=SECONDS,
    cases=(
        Case(
            "without inputs it learns less",
            on_cpu(recorded_dry_run(experiments(), curve(FALLING), curve(_BIASED, mode="zeroed"))),
            "passed",
        ),
        Case(
            "inputs do not matter",
            on_cpu(recorded_dry_run(experiments(), curve(FALLING), curve(FALLING, mode="zeroed"))),
            "fatal",
        ),
        Case(
            "the same where it is a guess what the input is",
            on_cpu(recorded_dry_run(experiments(certain=False), curve(FALLING), curve(FALLING, mode="zeroed"))),
            "warn",
        ),
        Case(
            "hardly",
            on_cpu(recorded_dry_run(experiments(), curve(FALLING), curve([x + 0.001 for x in FALLING], mode="zeroed"))),
            "warn",
        ),
        Case(
            "the first batch is empty",
            on_cpu(recorded_dry_run(experiments(), curve(FALLING), curve(FALLING, mode="zeroed", zero_already=True))),
            "warn",
        ),
        Case(
            "without inputs it is not a number",
            on_cpu(recorded_dry_run(experiments(), curve(FALLING), curve([2.4, float("nan")], mode="zeroed"))),
            "passed",
        ),
        Case(
            "one batch is kept from the start",
            on_cpu(recorded_dry_run(experiments(), curve(FALLING, given=0))),
            "not checked",
        ),
        Case("the loss stands still", on_cpu(recorded_dry_run(experiments(), curve([2.3] * 24))), "not checked"),
    ),
)

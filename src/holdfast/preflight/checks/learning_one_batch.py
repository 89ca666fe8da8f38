"""Can the model learn one batch by heart?

**What it asks.** In the dry run the first batch is given again and again, on the device that the training would use, from the
weights that it starts with, at the rate that it is to reach: does the loss fall? Where it does not, lower or higher rates are tried.

**Why.** Whatever can learn at all learns one batch by heart in a few steps. What cannot will not learn a data set in ten hours:
a loss that does not depend on the weights, gradients that do not arrive, a device that loses them, labels of another batch.

**What to do.** Fatal is a loss that no rate moves at all. One that moves and does not fall is a warning: look at the loss, at the
labels of one batch, at what is frozen. Where it falls only at another rate than planned, think about that rate.

**When it stays silent.** Where several optimizers step (GANs), where losses are below 0 or exactly 0, where a batch cannot be given
again (no DataLoader is read, and it is not drawn at random either), where the training ends before.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from holdfast.diagnosis.overfit import MIN_COUNT, loss_curve
from holdfast.preflight.case_dry_runs import FALLING, LEVEL, curve, experiments, on_cpu, recorded_dry_run
from holdfast.preflight.checks.check import Answer, Case, Check, NotChecked, finding
from holdfast.preflight.dry_run.cache import SECONDS, get_dry_run_with_experiments

if TYPE_CHECKING:
    from holdfast.diagnosis.overfit import LossCurve
    from holdfast.preflight.checks.check import CheckContext
    from holdfast.schema.verdicts import Finding

ID = "learning-one-batch"


def run(context: CheckContext) -> Answer:
    dry_run = get_dry_run_with_experiments(context)
    curves = [
        (line, loss_curve([float(loss) for loss in line["losses"]])) for line in dry_run.of("curve") if _again(line)
    ]
    courses = {float(line["factor"]): how for line, how in curves}
    if not courses:
        raise NotChecked("one batch was never given again for long enough")
    falling = {factor: how for factor, how in courses.items() if how.clear}
    if falling:
        factor = next(iter(falling))
        return Answer(_fell(falling[factor], factor))
    if not (dry_run.one("experiments") or {}).get("drawn") and not any(line["given"] for line, _ in curves):
        raise NotChecked("it reads its loader no more after its first steps: a batch cannot be given again")
    most = max(how.steps for how in courses.values())
    if most < MIN_COUNT:
        raise NotChecked(f"only {most} steps on one batch were made in their time: give more with --seconds")
    return Answer(f"{most} steps on one batch", (_found(courses),))


def _again(line: object) -> bool:
    return isinstance(line, dict) and line["mode"] == "again"


def _fell(how: LossCurve, factor: float) -> str:
    at = "" if factor == 1.0 else f", at {factor:g} times the planned rate; at the planned one it did not"
    return f"one batch again and again: the loss fell from {how.first:.4g} to {how.late:.4g} in {how.steps} steps{at}"


def _found(courses: dict[float, LossCurve]) -> Finding:
    said = [
        f"at {factor:g} times the planned rate: {how.first:.6g} at first, {how.late:.6g} after {how.steps} steps"
        for factor, how in courses.items()
    ]
    if all(how.constant for how in courses.values()):
        return finding(
            ID,
            "fatal",
            f"The loss stays at {next(iter(courses.values())).first:.6g} whatever is done: on one and the same batch, no step "
            "changes it. Nothing can be learned like this.",
            evidence=said,
            remedies=[
                "look at how the loss is made from the model's output: detach(), argmax, .item() and a new tensor cut it off",
                "look at which weights the optimizer holds",
                "if it trains on a device, run a few steps on the CPU: if the loss moves there, the device is at fault",
            ],
        )
    return finding(
        ID,
        "warn",
        "One batch was given again and again, and the loss did not fall clearly at any of the rates that were tried: "
        f"{', '.join(f'{factor:g}' for factor in courses)} times the planned one.",
        evidence=said,
        remedies=[
            "look at the labels of one batch, beside its inputs",
            "if it trains on a device, run a few steps on the CPU and compare",
            "if this loss is not one that has to fall, skip this check: --skip learning-one-batch",
        ],
        confidence="likely",
    )


CHECK = Check(
    id=ID,
    kind="learning",
    run=run,
    page=__doc__ or "",
    needs=("command",),
    seconds=SECONDS,
    cases=(
        Case("the loss falls", on_cpu(recorded_dry_run(experiments(), curve(FALLING))), "passed"),
        Case(
            "it falls at a tenth of the rate",
            on_cpu(recorded_dry_run(experiments(), curve([2.0, 9.0, 40.0]), curve(FALLING, 0.1))),
            "passed",
        ),
        Case(
            "it stands still",
            on_cpu(recorded_dry_run(experiments(), curve([2.3] * 24), curve([2.3] * 24, 10.0))),
            "fatal",
        ),
        Case("it only wavers", on_cpu(recorded_dry_run(experiments(), curve(LEVEL), curve(LEVEL, 10.0))), "warn"),
        Case(
            "it rises", on_cpu(recorded_dry_run(experiments(), curve(FALLING[::-1]), curve(FALLING[::-1], 0.1))), "warn"
        ),
        Case(
            "a batch that is kept, and does not help",
            on_cpu(recorded_dry_run(experiments(), curve(LEVEL, given=0))),
            "not checked",
        ),
        Case("a GAN", on_cpu(recorded_dry_run(experiments(False, "several optimizers step"))), "not checked"),
        Case("too slow", on_cpu(recorded_dry_run(experiments(), curve([2.3, 2.2, 2.1]))), "not checked"),
        Case("no step", on_cpu(recorded_dry_run(losses=(), code=None)), "not checked"),
    ),
)

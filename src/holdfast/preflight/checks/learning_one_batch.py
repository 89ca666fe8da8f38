"""Can the model overfit one batch?

**What it checks.** The dry run trains repeatedly on the first batch, on the device that your script uses, starting from
the model's initial weights, at the peak learning rate of the run. The loss must fall. If it does not, lower or higher
learning rates are tried.

**Why.** A model that can learn at all overfits one batch in a few steps. A model that cannot will not learn a whole
dataset in ten hours either. Possible causes: the loss does not depend on the weights, gradients do not reach the
weights or are lost on the device, or the labels do not match the inputs.

**What to do.** Check the loss, the labels of one batch, and the frozen layers. If the loss falls only at another
learning rate, reconsider yours.

**Severity.** `fatal` if the loss does not change at any learning rate, `warn` if it changes but does not fall.

**When it is not checked.** The result is `not checked` if several optimizers are used (GANs), if the loss is negative
or exactly 0, if the batch cannot be repeated, or if the run ends too early. If the script does not use a DataLoader,
Holdfast can repeat a batch only if it is drawn at random, by restoring the random state.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from holdfast.diagnosis.overfit import MIN_COUNT, loss_curve
from holdfast.preflight.case_dry_runs import FALLING, LEVEL, curve, experiments, on_cpu
from holdfast.preflight.checks.check import Answer, Case, Check, CheckContext, NotChecked, fatal, warn
from holdfast.preflight.dry_run.cache import SECONDS, get_dry_run_with_experiments

if TYPE_CHECKING:
    from holdfast.diagnosis.overfit import LossCurve
    from holdfast.schema.verdicts import Finding


def run(context: CheckContext) -> Answer:
    dry_run = get_dry_run_with_experiments(context)
    curves = [
        (line, loss_curve([float(loss) for loss in line["losses"]]))
        for line in dry_run.select("curve")
        if _repeats_batch(line)
    ]
    by_factor = {float(line["factor"]): curve for line, curve in curves}
    if not by_factor:
        raise NotChecked("one batch was never repeated for long enough")
    falling = {factor: curve for factor, curve in by_factor.items() if curve.clear}
    if falling:
        factor = next(iter(falling))
        return Answer(_describe_fall(falling[factor], factor))
    if not (dry_run.first("experiments") or {}).get("drawn") and not any(line["given"] for line, _ in curves):
        raise NotChecked("the script stops reading its DataLoader after its first steps, so a batch cannot be repeated")
    most = max(curve.steps for curve in by_factor.values())
    if most < MIN_COUNT:
        raise NotChecked(f"only {most} steps on one batch were completed in time: increase --seconds")
    return Answer(f"{most} steps on one batch", (_make_finding(by_factor),))


def _repeats_batch(line: object) -> bool:
    return isinstance(line, dict) and line["mode"] == "again"


def _describe_fall(curve: LossCurve, factor: float) -> str:
    at = (
        "" if factor == 1.0 else f", at {factor:g} times the planned learning rate; at the planned rate it did not fall"
    )
    return f"one repeated batch: the loss fell from {curve.first:.4g} to {curve.late:.4g} in {curve.steps} steps{at}"


def _make_finding(by_factor: dict[float, LossCurve]) -> Finding:
    evidence = [
        f"at {factor:g} times the planned learning rate: {curve.first:.6g} at first, {curve.late:.6g} after {curve.steps} steps"
        for factor, curve in by_factor.items()
    ]
    if all(curve.constant for curve in by_factor.values()):
        return fatal(
            f"The loss stays at {next(iter(by_factor.values())).first:.6g}: no step on the same batch "
            "changes it. The model cannot learn.",
            evidence=evidence,
            remedies=[
                "check how the loss is computed from the model's output: detach(), argmax, .item() or a new tensor breaks the graph",
                "check which parameters the optimizer has",
                "on an accelerator, run a few steps on the CPU: if the loss changes there, the accelerator is the cause",
            ],
        )
    return warn(
        "One batch was repeated, and the loss did not clearly fall at any of the learning rates that were tried: "
        f"{', '.join(f'{factor:g}' for factor in by_factor)} times the planned learning rate.",
        evidence=evidence,
        remedies=[
            "compare the labels of one batch with its inputs",
            "on an accelerator, run a few steps on the CPU and compare",
            "if this loss is not supposed to fall, skip this check: --skip learning-one-batch",
        ],
        confidence="likely",
    )


CHECK = Check(
    kind="learning",
    run=run,
    needs=("command",),
    seconds=SECONDS,
    cases=lambda: (
        Case("the loss falls", on_cpu(experiments(), curve(FALLING)), "passed"),
        Case(
            "the loss falls at a tenth of the learning rate",
            on_cpu(experiments(), curve([2.0, 9.0, 40.0]), curve(FALLING, 0.1)),
            "passed",
        ),
        Case("the loss is constant", on_cpu(experiments(), curve([2.3] * 24), curve([2.3] * 24, 10.0)), "fatal"),
        Case("the loss only fluctuates", on_cpu(experiments(), curve(LEVEL), curve(LEVEL, 10.0)), "warn"),
        Case("the loss rises", on_cpu(experiments(), curve(FALLING[::-1]), curve(FALLING[::-1], 0.1)), "warn"),
        Case(
            "the script reads only one batch, and the loss does not fall",
            on_cpu(experiments(), curve(LEVEL, given=0)),
            "not checked",
        ),
        Case("several optimizers (a GAN)", on_cpu(experiments(False, "several optimizers step")), "not checked"),
        Case("too few steps in time", on_cpu(experiments(), curve([2.3, 2.2, 2.1])), "not checked"),
        Case("no step was completed", on_cpu(losses=(), code=None), "not checked"),
    ),
)

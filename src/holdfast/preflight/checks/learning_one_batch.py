"""Can the model overfit one batch?

**What it asks.** The dry run repeats the first batch, on the device of the training, from its initial weights, at its peak learning
rate: does the loss fall? If not, lower or higher learning rates are tried.

**Why.** A model that can learn at all overfits one batch in a few steps. A model that cannot will not learn a data set in ten hours
either: the loss does not depend on the weights, gradients do not arrive, the device loses them, or the labels belong to another batch.

**What to do.** A loss that does not change at any learning rate is fatal. A loss that changes but does not fall is a warning: check the loss,
the labels of one batch, and the frozen layers. If the loss falls only at another learning rate than planned, reconsider the planned one.

**When it stays silent.** Several optimizers make steps (GANs), losses are below 0 or exactly 0, a batch cannot be repeated
(there is no DataLoader, and the batch is not drawn at random either), or the training ends earlier.
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
        raise NotChecked("the training stops reading its loader after its first steps: a batch cannot be repeated")
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
        return finding(
            ID,
            "fatal",
            f"The loss stays at {next(iter(by_factor.values())).first:.6g}: no step on the same batch "
            "changes it. The model cannot learn.",
            evidence=evidence,
            remedies=[
                "check how the loss is computed from the model's output: detach(), argmax, .item() or a new tensor breaks the graph",
                "check which parameters the optimizer has",
                "if it trains on a device, run a few steps on the CPU: if the loss changes there, the device is the cause",
            ],
        )
    return finding(
        ID,
        "warn",
        "One batch was repeated, and the loss did not clearly fall at any of the learning rates that were tried: "
        f"{', '.join(f'{factor:g}' for factor in by_factor)} times the planned learning rate.",
        evidence=evidence,
        remedies=[
            "compare the labels of one batch with its inputs",
            "if it trains on a device, run a few steps on the CPU and compare",
            "if this loss is not supposed to fall, skip this check: --skip learning-one-batch",
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
            "the loss falls at a tenth of the learning rate",
            on_cpu(recorded_dry_run(experiments(), curve([2.0, 9.0, 40.0]), curve(FALLING, 0.1))),
            "passed",
        ),
        Case(
            "the loss is constant",
            on_cpu(recorded_dry_run(experiments(), curve([2.3] * 24), curve([2.3] * 24, 10.0))),
            "fatal",
        ),
        Case(
            "the loss only fluctuates",
            on_cpu(recorded_dry_run(experiments(), curve(LEVEL), curve(LEVEL, 10.0))),
            "warn",
        ),
        Case(
            "the loss rises",
            on_cpu(recorded_dry_run(experiments(), curve(FALLING[::-1]), curve(FALLING[::-1], 0.1))),
            "warn",
        ),
        Case(
            "the training keeps one batch, and the loss does not fall",
            on_cpu(recorded_dry_run(experiments(), curve(LEVEL, given=0))),
            "not checked",
        ),
        Case("a GAN", on_cpu(recorded_dry_run(experiments(False, "several optimizers step"))), "not checked"),
        Case("too slow", on_cpu(recorded_dry_run(experiments(), curve([2.3, 2.2, 2.1]))), "not checked"),
        Case("no step", on_cpu(recorded_dry_run(losses=(), code=None)), "not checked"),
    ),
)

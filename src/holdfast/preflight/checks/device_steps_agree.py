"""Do whole steps on the accelerator match the CPU, and are they reproducible?

**What it checks.** Runs the same first steps twice on the accelerator and once on the CPU, from the same seeds, without
additional synchronization. Losses, gradients and weights are compared. The tolerance comes from two more runs on the
CPU whose arithmetic is perturbed at the level of rounding errors.

**Why.** device-operators synchronizes after each operator and therefore hides races, such as copies that are used before they are
complete. ultralytics 8.3.203 is an example (ultralytics/hub#1199).

**What to do.** Remove `non_blocking=True`, install a newer version, or use a different device.

**Limitations.** If everything runs on the CPU, there is nothing to compare. The comparison with the CPU requires that
Holdfast can change the device: through `device=` in a plan or in the command of a framework, or through a `--device`
option in the command. Otherwise only the two runs on the accelerator are compared, and the result states this.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from holdfast.diagnosis.device_parity import StepRecord, step_agreement
from holdfast.preflight.case_dry_runs import on_cpu
from holdfast.preflight.checks.check import Answer, Case, Check, CheckContext, NotChecked, fatal
from holdfast.preflight.dry_run.cache import CLEANUP_S, STEPS, get_dry_run_with_steps
from holdfast.preflight.dry_run.run import find_device_argument, run_in_scratch

if TYPE_CHECKING:
    from collections.abc import Sequence

    from holdfast.diagnosis.device_parity import StepAgreement
    from holdfast.preflight.dry_run.run import DryRunResult
    from holdfast.schema.verdicts import Finding

SECONDS = 240.0
ROUNDING = 2.0**-23
MAX_EVIDENCE = 6


@dataclass(frozen=True)
class Attempt:
    name: str
    device: str | None = None
    """None: the device that the script itself uses."""
    jitter: Any = 0.0
    seed: int = 0


def run(context: CheckContext) -> Answer:
    dry_run = get_dry_run_with_steps(context)
    ended = next((line for line in dry_run.op_check if line.get("event") == "op-check-ended"), None)
    if ended is not None and not ended["calls"]:
        return Answer("nothing to compare: everything ran on the CPU")
    if ended is None:
        raise NotChecked("the first steps were not completed: see device-operators")
    attempts = [Attempt(name, context.named_device) for name in ("device-1", "device-2")]
    if can_change_device(context):
        jitter = next(iter(ended["devices"].values()), None) or ROUNDING
        attempts += [Attempt("cpu", "cpu"), *(Attempt(f"cpu-moved-{n}", "cpu", jitter, n) for n in (1, 2))]
    records = _record_steps(context, attempts)
    first, second, *cpu = (records[attempt.name] for attempt in attempts)
    agreement = step_agreement(first, second, cpu[0] if cpu else [], [run for run in cpu[1:] if run])
    return make_answer(agreement, asked_cpu=bool(cpu), got_cpu=bool(cpu and cpu[0]))


def can_change_device(context: CheckContext) -> bool:
    """Return whether Holdfast can change the device of this training."""
    return context.framework.builds_command or find_device_argument(context.command) is not None


def make_answer(agreement: StepAgreement, *, asked_cpu: bool, got_cpu: bool) -> Answer:
    if not agreement.compared:
        raise NotChecked(agreement.message)
    message = agreement.message
    if not asked_cpu:
        message += ": Holdfast cannot change the device of this training (device=, --device)"
    elif not got_cpu:
        message += ": no step was completed on the CPU"
    if agreement.agrees:
        return Answer(message)
    return Answer(message, (_make_finding(agreement),))


def _make_finding(agreement: StepAgreement) -> Finding:
    differences = [*agreement.races, *agreement.wrong]
    return fatal(
        agreement.message[0].upper() + agreement.message[1:] + ".",
        evidence=[
            f"step {difference.step}, {difference.kind} {difference.name}: {difference.one:.6g} and {difference.other:.6g}, {difference.times:.3g} times the rounding tolerance"
            for difference in differences[:MAX_EVIDENCE]
        ],
        remedies=["copy tensors without non_blocking=True", "install the newest torch", "train on the CPU"],
    )


def _record_steps(context: CheckContext, attempts: Sequence[Attempt]) -> dict[str, list[StepRecord]]:
    """Record the steps of each attempt, two attempts at a time, to save time."""
    seconds = max(1.0, context.seconds_left - CLEANUP_S) * 2 / (len(attempts) + 1)

    def record(attempt: Attempt) -> list[StepRecord]:
        request = {"steps": STEPS, "name": attempt.name, "jitter": attempt.jitter, "jitter_seed": attempt.seed}
        dry_run: DryRunResult = run_in_scratch(context, {"record": request}, seconds, device=attempt.device)
        return [StepRecord.read(line) for line in dry_run.records]

    with ThreadPoolExecutor(max_workers=2) as pool:
        # The two attempts on the device run one after the other, because they would disturb each other.
        device = pool.submit(lambda: [record(attempt) for attempt in attempts[:2]])
        others = pool.submit(lambda: [record(attempt) for attempt in attempts[2:]])
        return dict(zip((attempt.name for attempt in attempts), [*device.result(), *others.result()], strict=True))


_NOTHING = {"event": "op-check-ended", "calls": 0, "devices": {}}

CHECK = Check(
    kind="device",
    run=run,
    needs=("command",),
    seconds=SECONDS,
    cases=lambda: (
        Case("a script that uses only the CPU", on_cpu(op_check=[_NOTHING]), "passed"),
        Case("no step was completed", on_cpu(losses=(), code=None), "not checked"),
    ),
)

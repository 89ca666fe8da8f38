"""Do whole steps on the device come out as on the CPU, and the same twice?

**What it asks.** The same first steps are made twice on the device and once on the CPU, from the same seeds, with nothing in between that waits
for the device; losses, gradients and weights are compared. How far they may be apart comes from two more runs on the CPU whose arithmetic
is moved by rounding.

**Why.** Comparing operator by operator waits for each of them, and so hides races: copies that are used before they are done. Report 000 and
ultralytics 8.3.203 are of that kind.

**What to do.** Without `non_blocking=True`, with a newer version, or on another device.

**When it stays silent.** On the CPU there is nothing to compare. The CPU's part needs the device to be a setting that Holdfast can change:
`device=` of Ultralytics or of a plan, or a word `--device` in the command; where it is not, only the device's own two runs are compared, and it
says so.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from holdfast.diagnosis.device_parity import StepRecord, step_agreement
from holdfast.preflight.case_dry_runs import on_cpu, recorded_dry_run
from holdfast.preflight.checks.check import Answer, Case, Check, NotChecked, finding
from holdfast.preflight.dry_run.cache import CLEANUP_S, STEPS, get_dry_run_with_steps
from holdfast.preflight.dry_run.run import find_device_argument, run_in_scratch

if TYPE_CHECKING:
    from collections.abc import Sequence

    from holdfast.diagnosis.device_parity import StepAgreement
    from holdfast.preflight.checks.check import CheckContext
    from holdfast.preflight.dry_run.run import DryRunResult
    from holdfast.schema.verdicts import Finding

ID = "device-steps-agree"
SECONDS = 240.0
ROUNDING = 2.0**-23
MAX_TOLD = 6


@dataclass(frozen=True)
class Life:
    name: str
    device: str | None = None
    """None: as it is."""
    jitter: Any = 0.0
    seed: int = 0


def run(context: CheckContext) -> Answer:
    dry_run = get_dry_run_with_steps(context)
    ended = next((line for line in dry_run.op_check if line.get("event") == "op-check-ended"), None)
    if ended is not None and not ended["calls"]:
        return Answer("nothing to compare: everything ran on the CPU")
    if ended is None:
        raise NotChecked("its first steps were not finished: see device-operators")
    on_its_own = context.device if context.device not in (None, "auto") else None
    lives = [Life("device-1", on_its_own), Life("device-2", on_its_own)]
    if can_change_device(context):
        jitter = next(iter(ended["devices"].values()), None) or ROUNDING
        lives += [Life("cpu", "cpu"), *(Life(f"cpu-moved-{n}", "cpu", jitter, n) for n in (1, 2))]
    made = _made(context, lives)
    first, second, *cpu = (made[life.name] for life in lives)
    agreement = step_agreement(first, second, cpu[0] if cpu else [], [run for run in cpu[1:] if run])
    return answer(agreement, asked_cpu=bool(cpu), got_cpu=bool(cpu and cpu[0]))


def can_change_device(context: CheckContext) -> bool:
    """Whether the device is a setting that Holdfast knows."""
    return context.uses_ultralytics or find_device_argument(context.command) is not None


def answer(agreement: StepAgreement, *, asked_cpu: bool, got_cpu: bool) -> Answer:
    if not agreement.compared:
        raise NotChecked(agreement.message)
    message = agreement.message
    if not asked_cpu:
        message += ": its device is no setting that Holdfast can change (device=, --device)"
    elif not got_cpu:
        message += ": on the CPU it made none"
    if agreement.agrees:
        return Answer(message)
    return Answer(message, (_found(agreement),))


def _found(agreement: StepAgreement) -> Finding:
    apart = [*agreement.races, *agreement.wrong]
    return finding(
        ID,
        "fatal",
        agreement.message[0].upper() + agreement.message[1:] + ".",
        evidence=[
            f"step {it.step}, {it.kind} {it.name}: {it.one:.6g} and {it.other:.6g}, {it.times:.3g} times what rounding explains"
            for it in apart[:MAX_TOLD]
        ],
        remedies=["copy without non_blocking=True", "install the newest torch and ultralytics", "train on the CPU"],
    )


def _made(context: CheckContext, lives: Sequence[Life]) -> dict[str, list[StepRecord]]:
    """Two at a time: they need the processor and, on their devices, each other's absence less than they need time."""
    seconds = max(1.0, context.seconds_left - CLEANUP_S) * 2 / (len(lives) + 1)

    def live(life: Life) -> list[StepRecord]:
        asked = {"steps": STEPS, "name": life.name, "jitter": life.jitter, "jitter_seed": life.seed}
        dry_run: DryRunResult = run_in_scratch(context, {"record": asked}, seconds, device=life.device)
        return [StepRecord.read(line) for line in dry_run.records]

    with ThreadPoolExecutor(max_workers=2) as pool:
        # The device's own two come one after the other: together they would disturb each other.
        device = pool.submit(lambda: [live(life) for life in lives[:2]])
        others = pool.submit(lambda: [live(life) for life in lives[2:]])
        return dict(zip((life.name for life in lives), [*device.result(), *others.result()], strict=True))


_NOTHING = {"event": "op-check-ended", "calls": 0, "devices": {}}

CHECK = Check(
    id=ID,
    kind="device",
    run=run,
    page=__doc__ or "",
    needs=("command",),
    seconds=SECONDS,
    cases=(
        Case("all on the CPU", on_cpu(recorded_dry_run(op_check=[_NOTHING])), "passed"),
        Case("no step", on_cpu(recorded_dry_run(losses=(), code=None)), "not checked"),
    ),
)

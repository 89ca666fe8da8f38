"""Will the training's memory suffice, at its peak?

**What it asks.** The largest stage of the plan is tried for two short epochs, and what all of its processes held at most, while they
trained and while they validated, is set against the limit: the plan's budget, or what can be had now. Added is what a short trial
does not hold yet: images that each loader keeps for mosaic, and all of them under `cache = "ram"`. A device with memory of its
own is set against what it can hold.

**Why.** Memory that ends is the commonest death of a long run, often hours into it, and on a Mac it comes without an error.

**What to do.** What would fit is said, from further trials: a smaller batch changes nothing of the result, as Ultralytics accumulates
gradients up to `nbs` images; then smaller images. `holdfast fit PLAN.toml` tells more.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from holdfast.diagnosis.units import size
from holdfast.preflight.batch_finder import find_what_fits
from holdfast.preflight.case_contexts import GIB, RecordedMachine, linux
from holdfast.preflight.checks.check import Answer, Case, Check, finding
from holdfast.preflight.checks.forecast_trial import (
    OUT_OF_MEMORY,
    SECONDS,
    ShortRun,
    get_short_run,
    get_short_run_or_failure,
)
from holdfast.preflight.cost_estimate import Counted, Memory, Span, estimate_memory
from holdfast.preflight.short_run import Measurement, measure
from holdfast.preflight.short_run_metrics import ShortRunTiming
from holdfast.schema.plan import Budget, Plan

if TYPE_CHECKING:
    from holdfast.preflight.checks.check import CheckContext
    from holdfast.schema.verdicts import Finding

ID = "forecast-memory"
TRIALS_MORE = 2
"""That saying what would fit takes."""


def run(context: CheckContext) -> Answer:
    found = get_short_run_or_failure(context)
    one = found.measured
    if one.failed and any(word in one.failed.lower() for word in OUT_OF_MEMORY):
        return _did_not_survive(context, found)
    found = get_short_run(context)
    memory = estimate_memory(one, found.settings, found.images)
    limit, whose = get_memory_limit(context, found.plan)
    message = (
        f"batch {one.batch} at {one.size} px: {_span(memory.training)} while it trains,"
        f" {_span(memory.validation)} while it validates; {size(limit)} are {whose}"
    )
    device = _device(found)
    if device is not None:
        message += f"; {device[0]}: {size(device[1])} of {size(device[2])}"
    return Answer(message, tuple(_findings(context, found, memory, limit, whose)))


def _findings(context: CheckContext, found: ShortRun, memory: Memory, limit: int, whose: str) -> list[Finding]:
    findings = []
    peak = memory.peak
    if peak.high > limit:
        where = "trains" if peak is memory.training else "validates"
        findings.append(
            finding(
                ID,
                "fatal" if peak.low > limit else "warn",
                f"While it {where} it will hold {_span(peak)}, and {size(limit)} are {whose}.",
                evidence=_evidence(found, memory),
                remedies=_remedies(context, found),
                confidence="proven" if peak.low > limit else "likely",
            )
        )
    device = _device(found)
    if device is not None and device[1] > 0.9 * device[2]:
        findings.append(
            finding(
                ID,
                "warn",
                f"It holds {size(device[1])} of the {size(device[2])} that {device[0]} has.",
                evidence=[f"reserved at most in a trial of {found.measured.seconds:.0f} s"],
                remedies=_remedies(context, found),
                confidence="likely",
            )
        )
    return findings


def _did_not_survive(context: CheckContext, found: ShortRun) -> Answer:
    one = found.measured
    message = f"batch {one.batch} at {one.size} px did not fit: {one.failed}"
    return Answer(
        message,
        (
            finding(
                ID,
                "fatal",
                f"A short trial with batch {one.batch} at {one.size} px did not survive: {one.failed}.",
                evidence=[one.failed],
                remedies=_remedies(context, found),
            ),
        ),
    )


def _evidence(found: ShortRun, memory: Memory) -> list[str]:
    one = found.measured
    return [
        f"held {size(one.training)} while it trained and {size(one.validation)} while it validated, in {one.seconds:.0f} s",
        *(f"and {size(amount)}: {what}" for what, amount in memory.more.items()),
    ]


def _remedies(context: CheckContext, found: ShortRun) -> list[str]:
    """What would fit, from further trials where there is time for them."""
    one = found.measured
    ask = "holdfast fit PLAN.toml says what fits"
    if context.short_run is not None or context.seconds_left < TRIALS_MORE * max(10.0, one.seconds):
        return [ask]
    seconds = context.seconds_left / TRIALS_MORE - 2.0

    answer = find_what_fits(
        found.stage,
        lambda what: context.notify(0, None, what),
        lambda plan, **settings: measure(plan, seconds=seconds, **settings),
        known=[one],
        verify=False,
    )
    if isinstance(answer, str):
        return [ask]
    batch, side = answer.largest_batch(one.size), answer.largest_size(one.batch)
    said = [f"batch = {batch} would fit at {one.size} px"] if batch is not None and batch < one.batch else []
    said += [f"imgsz = {side} would fit with batch {one.batch}"] if side is not None and side < one.size else []
    if found.settings.get("cache") in (True, "ram", "True"):
        said.append("cache = false holds no images")
    return said or ["not even a batch of 1 would fit: close other programs, or take a smaller model"]


def get_memory_limit(context: CheckContext, plan: Plan | None) -> tuple[int, str]:
    """Bytes that a training may hold, and whose bound that is."""
    memory = context.machine.memory()
    budget = plan.budget.memory if plan is not None else None
    if budget is not None and budget <= memory.available:
        return budget, "the plan's budget"
    return memory.available, f"what can be had now of {size(memory.limit)}"


def _device(found: ShortRun) -> tuple[str, int, int] | None:
    device = found.measured.device
    return (device[0], device[1], device[2]) if device is not None and device[2] else None


def _span(span: Span) -> str:
    return f"about {size(span.expected)} ({size(span.low)} to {size(span.high)})"


def recorded(
    *, peak: float = 2.0, validation: float = 1.0, failed: str = "", memory: float | None = None, **plan: object
) -> ShortRun:
    """A trial as it might have been: of a thousand images, three batches a second."""
    planned = Plan(
        cwd="/",
        trainer="ultralytics",
        settings={"model": "yolo11n.yaml", "data": "data.yaml", "imgsz": 640, "batch": 16, "epochs": 100, **plan},
        budget=Budget(memory=None if memory is None else int(memory * GIB)),
    )
    one = Measurement(
        batch=16,
        size=640,
        training=int(peak * GIB),
        validation=int(validation * GIB),
        wall=ShortRunTiming(start=8.0, batch=0.33, closed=0.3, validation=2.0, saving=0.1, after=6.0, spread=0.05),
        images=128,
        validated=96,
        snapshot=42_000_000,
        checkpoint=26_000_000,
        beside=5_000_000,
        failed=failed,
        seconds=30.0,
    )
    return ShortRun(planned, planned, one, (Counted(1000, 200),))


def _on(available: float = 10.0, **more: float | str) -> CheckContext:
    machine = RecordedMachine(total=16 * GIB, available=int(available * GIB))
    found = recorded(**more)  # type: ignore[arg-type]
    return linux(machine=machine, short_run=found, plan=found.plan, cwd=Path("/"))


CHECK = Check(
    id=ID,
    kind="forecast",
    run=run,
    page=__doc__ or "",
    needs=("command",),
    seconds=SECONDS,
    cases=(
        Case("there is room", _on(), "passed"),
        Case("the trial held more than there is", _on(available=1.5), "fatal"),
        Case("it may be just too much", _on(available=2.1), "warn"),
        Case("the budget is smaller than the machine", _on(memory=1.0), "fatal"),
        Case("validation holds more than training", _on(available=4.0, validation=5.0), "fatal"),
        Case("all images are kept in memory", _on(available=3.0, cache="ram"), "warn"),
        Case("the trial was killed", _on(failed="it was ended by SIGKILL"), "fatal"),
        Case("the trial did not run for another reason", _on(failed="ImportError: no module"), "not checked"),
    ),
)

"""Is there enough memory for the peak of the run?

**What it checks.** For Ultralytics commands and plans: runs the stage with the most pixels per batch for two short
epochs (the *short run*), and compares the peak memory of all its processes, during training and during validation, with
the limit: the plan's budget, or the memory that is available now, whichever is lower. Holdfast adds the memory that a
longer run will need: images that each loader process keeps for mosaic, or all images with `cache = "ram"`. For an
accelerator with its own memory, the peak there is compared with its capacity.

**Why.** Running out of memory is the most common cause of a crash in a long run, often after hours, and on a Mac there
is no error message.

**What to do.** The finding suggests settings that fit, based on additional short runs. Try a smaller batch first: Ultralytics
accumulates gradients over `nbs` images, so the effective batch size stays the same. The next option is smaller images. Run
`holdfast fit PLAN.toml` to find the largest batch and image size that fit.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from holdfast.frameworks.ultralytics.batch_finder import find_what_fits
from holdfast.frameworks.ultralytics.cost_estimate import ImageCounts, Memory, estimate_memory
from holdfast.frameworks.ultralytics.forecast_trial import (
    SECONDS,
    ShortRun,
    get_short_run,
    get_short_run_or_failure,
)
from holdfast.frameworks.ultralytics.short_run import Measurement, measure
from holdfast.frameworks.ultralytics.short_run_metrics import ShortRunTiming
from holdfast.preflight.case_contexts import RecordedMachine, linux
from holdfast.preflight.checks.check import Answer, Case, Check, CheckContext, fatal, finding, warn
from holdfast.preflight.checks.estimates import get_memory_limit
from holdfast.schema.plan import Budget, Plan
from holdfast.schema.units import GIB, size

if TYPE_CHECKING:
    from holdfast.preflight.checks.estimates import Span
    from holdfast.schema.verdicts import Finding

EXTRA_RUNS = 2
"""Short runs needed to find out what would fit."""


def run(context: CheckContext) -> Answer:
    found = get_short_run_or_failure(context)
    measured = found.measured
    if measured.out_of_memory:
        return _report_out_of_memory(context, found)
    found = get_short_run(context)
    memory = estimate_memory(measured, found.settings, found.images)
    limit, limit_name = get_memory_limit(context, found.plan)
    message = (
        f"batch {measured.batch} at {measured.size} px: {_format_span(memory.training)} in training,"
        f" {_format_span(memory.validation)} in validation; {size(limit)} is {limit_name}"
    )
    device = _device_memory(found)
    if device is not None:
        message += f"; {device[0]}: {size(device[1])} of {size(device[2])}"
    return Answer(message, tuple(_findings(context, found, memory, limit, limit_name)))


def _findings(context: CheckContext, found: ShortRun, memory: Memory, limit: int, limit_name: str) -> list[Finding]:
    findings = []
    peak = memory.peak
    if peak.high > limit:
        phase = "Training" if peak is memory.training else "Validation"
        findings.append(
            finding(
                "fatal" if peak.low > limit else "warn",
                f"{phase} will need {_format_span(peak)}, but {size(limit)} is {limit_name}.",
                evidence=_evidence(found, memory),
                remedies=_remedies(context, found),
                confidence="proven" if peak.low > limit else "likely",
            )
        )
    device = _device_memory(found)
    if device is not None and device[1] > 0.9 * device[2]:
        findings.append(
            warn(
                f"Training reserves {size(device[1])} of the {size(device[2])} of {device[0]}.",
                evidence=[f"peak in a short run of {found.measured.seconds:.0f} s"],
                remedies=_remedies(context, found),
                confidence="likely",
            )
        )
    return findings


def _report_out_of_memory(context: CheckContext, found: ShortRun) -> Answer:
    measured = found.measured
    message = f"batch {measured.batch} at {measured.size} px did not fit: {measured.failed}"
    return Answer(
        message,
        (
            fatal(
                f"A short run with batch {measured.batch} at {measured.size} px ran out of memory: {measured.failed}.",
                evidence=[measured.failed],
                remedies=_remedies(context, found),
            ),
        ),
    )


def _evidence(found: ShortRun, memory: Memory) -> list[str]:
    measured = found.measured
    return [
        f"peak of {size(measured.training)} in training and {size(measured.validation)} in validation, in {measured.seconds:.0f} s",
        *(f"plus {size(amount)}: {what}" for what, amount in memory.more.items()),
    ]


def _remedies(context: CheckContext, found: ShortRun) -> list[str]:
    """Return what would fit, from further short runs if there is time for them."""
    measured = found.measured
    hint = "run `holdfast fit PLAN.toml` to find the largest batch and image size that fit"
    if context.short_run is not None or context.seconds_left < EXTRA_RUNS * max(10.0, measured.seconds):
        return [hint]
    seconds = context.seconds_left / EXTRA_RUNS - 2.0

    answer = find_what_fits(
        found.stage,
        lambda what: context.notify(0, None, what),
        lambda plan, **settings: measure(plan, seconds=seconds, **settings),
        known=[measured],
        verify=False,
    )
    if isinstance(answer, str):
        return [hint]
    batch, side = answer.largest_batch(measured.size), answer.largest_size(measured.batch)
    remedies = (
        [f"batch = {batch} would fit at {measured.size} px"] if batch is not None and batch < measured.batch else []
    )
    remedies += (
        [f"imgsz = {side} would fit with batch {measured.batch}"] if side is not None and side < measured.size else []
    )
    if found.settings.get("cache") in (True, "ram", "True"):
        remedies.append("cache = false keeps no images in memory")
    return remedies or ["not even a batch of 1 would fit: close other programs, or use a smaller model"]


def _device_memory(found: ShortRun) -> tuple[str, int, int] | None:
    device = found.measured.device
    return (device[0], device[1], device[2]) if device is not None and device[2] else None


def _format_span(span: Span) -> str:
    return f"about {size(span.expected)} ({size(span.low)} to {size(span.high)})"


def recorded(
    *,
    peak: float = 2.0,
    validation: float = 1.0,
    failed: str = "",
    killed: bool = False,
    memory: float | None = None,
    **plan: object,
) -> ShortRun:
    """Return a plausible short run: a thousand images, three batches per second."""
    planned = Plan(
        cwd="/",
        trainer="ultralytics",
        settings={"model": "yolo11n.yaml", "data": "data.yaml", "imgsz": 640, "batch": 16, "epochs": 100, **plan},
        budget=Budget(memory=None if memory is None else int(memory * GIB)),
    )
    measured = Measurement(
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
        out_of_memory=killed,
        seconds=30.0,
    )
    return ShortRun(planned, planned, measured, (ImageCounts(1000, 200),))


def _make_case(available: float = 10.0, **more: float | str) -> CheckContext:
    machine = RecordedMachine(total=16 * GIB, available=int(available * GIB))
    found = recorded(**more)  # type: ignore[arg-type]
    return linux(machine=machine, short_run=found, plan=found.plan, cwd=Path("/"))


CHECK = Check(
    kind="forecast",
    run=run,
    needs=("command",),
    seconds=SECONDS,
    cases=lambda: (
        Case("enough memory", _make_case(), "passed"),
        Case("the short run needs more memory than is available", _make_case(available=1.5), "fatal"),
        Case("it may need slightly more memory than is available", _make_case(available=2.1), "warn"),
        Case("the budget is smaller than the machine's memory", _make_case(memory=1.0), "fatal"),
        Case("validation needs more than training", _make_case(available=4.0, validation=5.0), "fatal"),
        Case("all images are cached in memory", _make_case(available=3.0, cache="ram"), "warn"),
        Case("the short run was killed", _make_case(failed="it was killed by SIGKILL", killed=True), "fatal"),
        Case("the short run failed for a different reason", _make_case(failed="ImportError: no module"), "not checked"),
    ),
)

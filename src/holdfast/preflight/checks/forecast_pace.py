"""How long do a step and an epoch of this command take, and how much memory does it use?

**What it checks.** For commands such as `python train.py`: runs the command as it is for about 12 seconds (at most 60), in a scratch copy of its
working directory. It measures the time of a typical step, the share of it spent waiting for data, the number of batches per epoch, and
the peak memory of all processes, which it compares with the available memory or the plan's budget.

**Why.** You learn in advance whether an epoch takes a minute or a night, and whether half of the time is spent reading data, which more
workers can fix.

**What to do.** If training waits for data, increase `num_workers` of the DataLoader, or use smaller files or a faster disk. If there is
too little memory, use a smaller batch with gradient accumulation, or close other programs.

**Limitations.** The total time is not estimated, because the number of epochs is not known. Validation is not measured. For
commands and plans of a framework that Holdfast knows, see forecast-time, forecast-memory and forecast-disk instead.
"""

from __future__ import annotations

import time
from statistics import median, quantiles
from typing import TYPE_CHECKING, Any

from holdfast.preflight.case_contexts import RecordedMachine, linux
from holdfast.preflight.case_dry_runs import COMMAND, recorded_dry_run
from holdfast.preflight.checks.check import Answer, Case, Check, CheckContext, NotChecked, warn
from holdfast.preflight.checks.estimates import UNCERTAINTY, Span, get_memory_limit
from holdfast.preflight.dry_run.cache import explain_no_steps
from holdfast.preflight.dry_run.run import count_occurrences, run_in_scratch
from holdfast.schema import events
from holdfast.schema.units import GIB, duration, size

if TYPE_CHECKING:
    from pathlib import Path

    from holdfast.preflight.dry_run.run import DryRunResult
    from holdfast.schema.verdicts import Finding

SECONDS = 60.0
WATCHED_S = 12.0
"""From the start, including imports; longer if there are too few steps by then."""
CLEANUP_S = 4.0
STEP = b'"event":"step"'
WARM_UP = 3
MIN_STEPS = 5
MAX_SHARE = 0.9
"""A share of the available memory. Using more in the first seconds is too much for hours of training."""
MILLISECONDS = 1000.0


def run(context: CheckContext) -> Answer:
    if context.framework.can_forecast(context):
        raise NotChecked(
            f"forecast-time, forecast-memory and forecast-disk cover commands and plans of {context.framework.title}"
        )
    dry_run = _watch_training(context)
    if dry_run.start_error:
        raise NotChecked(f"the command could not be started: {dry_run.start_error}")
    recorded = [event for event in dry_run.events if isinstance(event, events.Step)]
    steps = recorded[WARM_UP:]
    if len(steps) < MIN_STEPS:
        few = f"the script made only {len(recorded)} steps in {dry_run.seconds:.0f} s, too few for a forecast"
        raise NotChecked(few if recorded else explain_no_steps(dry_run))
    step = _span([step.seconds for step in steps])
    wait_share = sum(step.data_wait for step in steps) / max(1e-9, sum(step.seconds for step in steps))
    limit, limit_name = get_memory_limit(context, context.plan)
    message = [
        f"a step takes {_format_time(step.expected)} ({_format_time(step.low)} to {_format_time(step.high)}), {wait_share:.0%} of it waiting for data",
        *_describe_epoch(dry_run, step, steps),
        f"peak memory is {size(dry_run.peak_memory)}; {size(limit)} is {limit_name}",
    ]
    return Answer("; ".join(message), tuple(_findings(dry_run, limit, limit_name)))


def _watch_training(context: CheckContext) -> DryRunResult:
    if context.make_dry_run is not None:
        return context.make_dry_run(context)
    until = time.monotonic() + WATCHED_S

    def enough(attempt: Path) -> bool:
        return time.monotonic() >= until and count_occurrences(STEP, attempt / "rank-0.jsonl") >= WARM_UP + MIN_STEPS

    return run_in_scratch(
        context, {}, max(1.0, context.seconds_left - CLEANUP_S), device=context.named_device, enough=enough
    )


def _span(seconds: list[float]) -> Span:
    """Return the quartiles, widened to at least the uncertainty of a measurement of a few seconds."""
    middle = median(seconds)
    low, _, high = quantiles(seconds, n=4)
    return Span(min(low, (1 - UNCERTAINTY) * middle), middle, max(high, (1 + UNCERTAINTY) * middle))


def _describe_epoch(dry_run: DryRunResult, step: Span, steps: list[events.Step]) -> list[str]:
    loader = next((event for event in dry_run.events if isinstance(event, events.Loader)), None)
    if loader is None:
        return []
    # One batch may have several backward passes, and one step several batches.
    batches_per_step = median(step.samples or 0 for step in steps) / loader.samples if loader.samples else 1.0
    count = loader.batches / max(1.0, batches_per_step)
    low, middle, high = (duration(count * part) for part in (step.low, step.expected, step.high))
    return [f"an epoch has {loader.batches:,} batches: about {middle} ({low} to {high}) without validation"]


def _findings(dry_run: DryRunResult, limit: int, limit_name: str) -> list[Finding]:
    if dry_run.peak_memory <= MAX_SHARE * limit:
        return []
    return [
        warn(
            f"The script used {size(dry_run.peak_memory)} in its first {dry_run.seconds:.0f} s, and {size(limit)} is {limit_name}.",
            evidence=[f"all of its processes together, sampled every half second for {dry_run.seconds:.0f} s"],
            remedies=["use a smaller batch with gradient accumulation", "close other programs"],
            confidence="likely",
        )
    ]


def _format_time(seconds: float) -> str:
    return f"{MILLISECONDS * seconds:.3g} ms" if seconds < 1.0 else duration(seconds)


def _make_case(available: float = 8.0, **recorded: Any) -> CheckContext:
    dry_run = _record_run(**recorded)
    machine = RecordedMachine(total=16 * GIB, available=int(available * GIB))
    return linux(command=COMMAND, make_dry_run=lambda _: dry_run, machine=machine)


def _record_run(*, steps: int = 40, peak: float = 1.0, loader: int | None = 500, **more: object) -> DryRunResult:
    recorded = [
        events.Step(at=float(n), step=n, seconds=0.1, loss=1.0, data_wait=0.02, samples=8) for n in range(1, steps + 1)
    ]
    first = [events.Loader(at=0.0, step=0, batches=loader, samples=8)] if loader is not None else []
    known = {
        "losses": (),
        "events": (*first, *recorded),
        "peak_memory": int(peak * GIB),
        "code": None,
        "seconds": 12.0,
        **more,
    }
    return recorded_dry_run(**known)  # type: ignore[arg-type]


CHECK = Check(
    kind="forecast",
    run=run,
    needs=("command",),
    seconds=SECONDS,
    cases=lambda: (
        Case("enough memory", _make_case(), "passed"),
        Case("a script without a DataLoader", _make_case(loader=None), "passed"),
        Case("barely enough memory", _make_case(peak=7.5), "warn"),
        Case("more memory used than available", _make_case(peak=9.0), "warn"),
        Case("too few steps in time", _make_case(steps=4), "not checked"),
        Case("no step was completed", _make_case(steps=0), "not checked"),
    ),
)

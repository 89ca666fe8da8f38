"""How long does a step of this command take, and an epoch; and what does it hold?

**What it asks.** A training that is not Ultralytics' is run as it is for some seconds, in a scratch copy of its folder: the time of
its typical step, how much of that it waits for data, how many batches a pass over its data has, and what all of its processes held
at most, against what can be had now or what the plan allows.

**Why.** Whether an epoch takes a minute or a night is known before it is waited for; so is that half of the time is spent on
reading data, which more workers would mend.

**What to do.** Where it waits for data: `num_workers` in its DataLoader, smaller files, a faster disk. Where memory is short: a smaller
batch with accumulation, or close what else runs here.

**When it stays silent.** How many epochs there will be is known to the script alone, and what validation takes is not seen in its
first seconds. Trainings of Ultralytics have forecasts of their own (forecast-time, forecast-memory, forecast-disk).
"""

from __future__ import annotations

import time
from statistics import median, quantiles
from typing import TYPE_CHECKING

from holdfast.diagnosis.units import duration, size
from holdfast.preflight.case_contexts import GIB, RecordedMachine
from holdfast.preflight.case_dry_runs import on_cpu, recorded_dry_run
from holdfast.preflight.checks.check import Answer, Case, Check, NotChecked, finding
from holdfast.preflight.checks.forecast_memory import get_memory_limit
from holdfast.preflight.checks.forecast_trial import get_ultralytics_plan
from holdfast.preflight.cost_estimate import UNSURE, Span
from holdfast.preflight.dry_run.cache import explain_no_steps
from holdfast.preflight.dry_run.run import count_occurrences, run_in_scratch
from holdfast.schema import events

if TYPE_CHECKING:
    from pathlib import Path

    from holdfast.preflight.checks.check import CheckContext
    from holdfast.preflight.dry_run.run import DryRunResult
    from holdfast.schema.verdicts import Finding

ID = "forecast-pace"
SECONDS = 60.0
WATCHED_S = 12.0
"""From its start, with its imports; longer where it has not made enough steps by then."""
CLEANUP_S = 4.0
STEP = b'"event":"step"'
WARM_UP = 3
MIN_STEPS = 5
SHORT = 0.9
"""Of what can be had: held in the first seconds, that is short for hours."""
MILLISECONDS = 1000.0


def run(context: CheckContext) -> Answer:
    if get_ultralytics_plan(context) is not None:
        raise NotChecked("forecast-time, forecast-memory and forecast-disk tell it of Ultralytics")
    dry_run = _run_as_it_is(context)
    if dry_run.start_error:
        raise NotChecked(f"it could not be started: {dry_run.start_error}")
    made = [event for event in dry_run.events if isinstance(event, events.Step)]
    steps = made[WARM_UP:]
    if len(steps) < MIN_STEPS:
        few = f"it made {len(made)} steps in {dry_run.seconds:.0f} s, too few to tell by"
        raise NotChecked(few if made else explain_no_steps(dry_run))
    step = _span([one.seconds for one in steps])
    waits = sum(one.data_wait for one in steps) / max(1e-9, sum(one.seconds for one in steps))
    limit, whose = get_memory_limit(context, context.plan)
    message = [
        f"a step takes {_time(step.expected)} ({_time(step.low)} to {_time(step.high)}), {waits:.0%} of it waiting for data",
        *_epoch(dry_run, step, steps),
        f"it held {size(dry_run.held)}; {size(limit)} are {whose}",
    ]
    return Answer("; ".join(message), tuple(_findings(dry_run, limit, whose)))


def _run_as_it_is(context: CheckContext) -> DryRunResult:
    if context.make_dry_run is not None:
        return context.make_dry_run(context)
    device = context.device if context.device not in (None, "auto") else None
    until = time.monotonic() + WATCHED_S

    def enough(attempt: Path) -> bool:
        return time.monotonic() >= until and count_occurrences(STEP, attempt / "rank-0.jsonl") >= WARM_UP + MIN_STEPS

    return run_in_scratch(context, {}, max(1.0, context.seconds_left - CLEANUP_S), device=device, enough=enough)


def _span(seconds: list[float]) -> Span:
    """As wide as it was, and no narrower than what a few seconds can tell."""
    middle = median(seconds)
    low, _, high = quantiles(seconds, n=4)
    return Span(min(low, (1 - UNSURE) * middle), middle, max(high, (1 + UNSURE) * middle))


def _epoch(dry_run: DryRunResult, step: Span, steps: list[events.Step]) -> list[str]:
    loader = next((event for event in dry_run.events if isinstance(event, events.Loader)), None)
    if loader is None:
        return []
    # Of a step: one batch may have several backwards, and a step several batches.
    each = median(one.samples or 0 for one in steps) / loader.samples if loader.samples else 1.0
    count = loader.batches / max(1.0, each)
    low, middle, high = (duration(count * part) for part in (step.low, step.expected, step.high))
    return [f"an epoch has {loader.batches:,} batches: about {middle} ({low} to {high}) without validation"]


def _findings(dry_run: DryRunResult, limit: int, whose: str) -> list[Finding]:
    if dry_run.held <= SHORT * limit:
        return []
    return [
        finding(
            ID,
            "warn",
            f"It held {size(dry_run.held)} in its first {dry_run.seconds:.0f} s, and {size(limit)} are {whose}.",
            evidence=[f"all of its processes together, looked at every half second for {dry_run.seconds:.0f} s"],
            remedies=["a smaller batch, with gradients accumulated over more of them", "close what else runs here"],
            confidence="likely",
        )
    ]


def _time(seconds: float) -> str:
    return f"{MILLISECONDS * seconds:.3g} ms" if seconds < 1.0 else duration(seconds)


def _ran(*, steps: int = 40, held: float = 1.0, loader: int | None = 500, **more: object) -> DryRunResult:
    made = [
        events.Step(at=float(n), step=n, seconds=0.1, loss=1.0, data_wait=0.02, samples=8) for n in range(1, steps + 1)
    ]
    first = [events.Loader(at=0.0, step=0, batches=loader, samples=8)] if loader is not None else []
    known = {"losses": (), "events": (*first, *made), "held": int(held * GIB), "code": None, "seconds": 12.0, **more}
    return recorded_dry_run(**known)  # type: ignore[arg-type]


def _on(dry_run: DryRunResult, available: float = 8.0) -> CheckContext:
    return on_cpu(dry_run, machine=RecordedMachine(total=16 * GIB, available=int(available * GIB)))


CHECK = Check(
    id=ID,
    kind="forecast",
    run=run,
    page=__doc__ or "",
    needs=("command",),
    seconds=SECONDS,
    cases=(
        Case("it steps, and there is room", _on(_ran()), "passed"),
        Case("it reads a stream", _on(_ran(loader=None)), "passed"),
        Case("there is hardly room", _on(_ran(held=7.5)), "warn"),
        Case("it held more than there was", _on(_ran(held=9.0)), "warn"),
        Case("it made few steps", _on(_ran(steps=4)), "not checked"),
        Case("it made none", _on(_ran(steps=0)), "not checked"),
    ),
)

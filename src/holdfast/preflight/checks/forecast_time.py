"""How long will it take?

**What it asks.** From the same short trial as the forecast of memory: the time of a typical batch with and without mosaic, of a
validation, of the start and the end. That times the plan's images, epochs and validations is the whole; stages that were not tried
are reckoned from the one that was, by the pixels of their batches, and have wider bounds.

**Why.** Whether it is done tomorrow or next week is known in a minute instead of after the first epoch; a budget of hours that ends a
training in its middle is seen before it is spent.

**What to do.** Fewer epochs, smaller images first (stages), `[validation] every = 5`; or a larger budget. A training that stops
early (`patience`) takes less than this. A machine that others use too is slower than it could be: the bounds hold for a trial under
the same load.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from holdfast.diagnosis.units import duration
from holdfast.preflight.case_contexts import linux
from holdfast.preflight.checks.check import Answer, Case, Check, finding
from holdfast.preflight.checks.forecast_memory import recorded
from holdfast.preflight.checks.forecast_trial import SECONDS, ShortRun, get_short_run
from holdfast.preflight.cost_estimate import Span, StageTime, estimate_times, sum_times
from holdfast.schema.plan import Budget

if TYPE_CHECKING:
    from collections.abc import Iterator

    from holdfast.preflight.checks.check import CheckContext
    from holdfast.schema.verdicts import Finding

ID = "forecast-time"
HOUR = 3600.0


def run(context: CheckContext) -> Answer:
    found = get_short_run(context)
    times = estimate_times(found.plan, found.measured, found.counted)
    total = sum_times(times)
    stages = ", ".join(f"{one.name}: {_stage(one)}" if len(times) > 1 else _stage(one) for one in times)
    message = f"{_span(total)} in all; {stages}"
    if not found.measured.validated:
        message += "; the trial did not come to a validation: theirs is not counted"
    hours = found.settings.get("time")
    if hours:
        message = f"Ultralytics itself ends it after {hours} h (time); {stages}"
        return Answer(message)
    return Answer(message, tuple(_findings(found, times, total)))


def _findings(found: ShortRun, times: list[StageTime], total: Span) -> Iterator[Finding]:
    hours = found.plan.budget.hours
    if hours is None or total.high <= hours * HOUR:
        return
    sure = total.low > hours * HOUR
    epochs = max(1, int(sum(one.epochs for one in times) * min(1.0, hours * HOUR / total.expected)))
    yield finding(
        ID,
        "warn",
        f"It will take {_span(total)}, and the budget ends it after {duration(hours * HOUR)}.",
        evidence=[f"{one.name}: {one.epochs} epochs, {_span(one.epoch)} each" for one in times],
        remedies=[
            f"plan about {epochs} epochs in all, or allow hours = {total.high / HOUR:.1f}",
            "it can be gone on with afterwards: holdfast resume",
        ],
        confidence="proven" if sure else "likely",
    )


def _stage(one: StageTime) -> str:
    reckoned = ", reckoned from another stage" if one.scaled else ""
    epochs = "1 epoch" if one.epochs == 1 else f"{one.epochs} epochs"
    return f"{epochs} of {one.batches:,} batches, {_span(one.epoch)} each{reckoned}"


def _span(span: Span) -> str:
    return f"about {duration(span.expected)} ({duration(span.low)} to {duration(span.high)})"


def _on(hours: float | None = None, failed: str = "", **settings: object) -> CheckContext:
    found = recorded(failed=failed, **settings)  # type: ignore[arg-type]
    plan = msgspec.structs.replace(found.plan, budget=Budget(hours=hours))
    return linux(short_run=ShortRun(plan, plan, found.measured, found.counted), plan=plan, cwd=Path("/"))


CHECK = Check(
    id=ID,
    kind="forecast",
    run=run,
    page=__doc__ or "",
    needs=("command",),
    seconds=SECONDS,
    cases=(
        Case("no budget of hours", _on(), "passed"),
        Case("done within its hours", _on(hours=2.0), "passed"),
        Case("ended in its middle", _on(hours=0.3), "warn"),
        Case("it may be just too long", _on(hours=0.7), "warn"),
        Case("Ultralytics ends it by itself", _on(hours=0.3, time=0.2), "passed"),
        Case("the trial did not run", _on(failed="no module"), "not checked"),
    ),
)

"""How long will the run take?

**What it checks.** Uses the same short run as forecast-memory. It measures startup, a typical batch with and without mosaic, validation,
and shutdown, and multiplies these times by the numbers of images, epochs and validations in the plan. Stages that were not run are
extrapolated from the measured stage in proportion to the pixels per batch, with wider error bounds.

**Why.** You know within a minute, not after the first epoch, whether the run will be done tomorrow or next week. You learn in advance
if the time budget would stop the run halfway.

**What to do.** Use fewer epochs, train with smaller images first (in a separate stage), validate less often (`[validation] every = 5`),
or increase the budget.

**Limitations.** A run that stops early (`patience`) takes less time. The estimate assumes the same load as during the short run.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from holdfast.frameworks.ultralytics.checks.forecast_memory import recorded
from holdfast.frameworks.ultralytics.cost_estimate import StageTime, estimate_times, sum_times
from holdfast.frameworks.ultralytics.forecast_trial import SECONDS, ShortRun, get_short_run
from holdfast.preflight.case_contexts import linux
from holdfast.preflight.checks.check import Answer, Case, Check, CheckContext, warn
from holdfast.schema.plan import Budget
from holdfast.schema.units import duration

if TYPE_CHECKING:
    from collections.abc import Iterator

    from holdfast.preflight.checks.estimates import Span
    from holdfast.schema.verdicts import Finding

HOUR = 3600.0


def run(context: CheckContext) -> Answer:
    found = get_short_run(context)
    times = estimate_times(found.plan, found.measured, found.counted)
    total = sum_times(times)
    stages = ", ".join(
        f"{stage.name}: {_format_stage(stage)}" if len(times) > 1 else _format_stage(stage) for stage in times
    )
    message = f"{_format_span(total)} in total; {stages}"
    if not found.measured.validated:
        message += "; the short run did not reach validation, so validation is not included"
    hours = found.settings.get("time")
    if hours:
        message = f"Ultralytics itself stops after {hours} h (time); {stages}"
        return Answer(message)
    return Answer(message, tuple(_findings(found, times, total)))


def _findings(found: ShortRun, times: list[StageTime], total: Span) -> Iterator[Finding]:
    hours = found.plan.budget.hours
    if hours is None or total.high <= hours * HOUR:
        return
    sure = total.low > hours * HOUR
    epochs = max(1, int(sum(stage.epochs for stage in times) * min(1.0, hours * HOUR / total.expected)))
    yield warn(
        f"The run will take {_format_span(total)}, but the budget stops it after {duration(hours * HOUR)}.",
        evidence=[f"{stage.name}: {stage.epochs} epochs, {_format_span(stage.epoch)} each" for stage in times],
        remedies=[
            f"plan about {epochs} epochs in total, or set hours = {total.high / HOUR:.1f}",
            "or continue afterwards with a higher limit: holdfast resume RUN --hours N",
        ],
        confidence="proven" if sure else "likely",
    )


def _format_stage(stage: StageTime) -> str:
    suffix = ", extrapolated from a different stage" if stage.scaled else ""
    epochs = "1 epoch" if stage.epochs == 1 else f"{stage.epochs} epochs"
    return f"{epochs} of {stage.batches:,} batches, {_format_span(stage.epoch)} each{suffix}"


def _format_span(span: Span) -> str:
    return f"about {duration(span.expected)} ({duration(span.low)} to {duration(span.high)})"


def _make_case(hours: float | None = None, failed: str = "", **settings: object) -> CheckContext:
    found = recorded(failed=failed, **settings)  # type: ignore[arg-type]
    plan = msgspec.structs.replace(found.plan, budget=Budget(hours=hours))
    return linux(short_run=ShortRun(plan, plan, found.measured, found.counted), plan=plan, cwd=Path("/"))


CHECK = Check(
    kind="forecast",
    run=run,
    needs=("command",),
    seconds=SECONDS,
    cases=lambda: (
        Case("no time budget", _make_case(), "passed"),
        Case("within the time budget", _make_case(hours=2.0), "passed"),
        Case("the budget stops the run halfway", _make_case(hours=0.3), "warn"),
        Case("it may take slightly too long", _make_case(hours=0.7), "warn"),
        Case("Ultralytics itself stops the run (time)", _make_case(hours=0.3, time=0.2), "passed"),
        Case("the short run failed", _make_case(failed="no module"), "not checked"),
    ),
)

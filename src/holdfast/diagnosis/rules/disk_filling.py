"""The disk will be full before training is done.

**What it means.** Free space on the disk that contains the run folder is steadily decreasing. When no space is left,
the next checkpoint is truncated and training fails.

**Why it happens.** The checkpoint of every epoch is kept (`save_period=1`), logs or cached features are written at
every step, swap files grow on a Mac's only disk, or another program fills the disk.

**What to do.** Keep only the best and the last checkpoint, delete old runs, or write to a larger disk.

**When it is reported.** It is reported if the disk is forecast to be full before the planned end of the run, or within
12 hours if the end is not known. The forecast looks ahead by at most 3 times the period observed so far, or 1.5 times
until four epochs have finished. Less than 500 MB of free space is always reported.

**When it is not reported.** It is not reported if free space stops decreasing, recovers from time to time, or drops
only once.
"""

from __future__ import annotations

from holdfast.diagnosis.growth import forecast_crossing, growth
from holdfast.diagnosis.hints import hint
from holdfast.diagnosis.rule import AttemptState, Case, Finding, Rule, RunState
from holdfast.schema import events
from holdfast.schema.units import MIB, duration, size
from holdfast.testing.resources import memory_history

LIMITS = {"least_mb": 500.0, "hours": 12.0, "epochs": 4, "reach": 3.0, "reach_without_epochs": 1.5, "fallen_mib": 256.0}


def judge(state: RunState) -> Finding | None:
    memory = state.attempt.memory
    limits = state.get_limits("disk-filling", LIMITS)
    if not memory.points:
        return None
    free = memory.points[-1].disk_free
    if free < limits["least_mb"] * 1e6:
        return _finding(state, f"Only {size(free)} of free space is left on the disk of the run folder.", free)
    if not memory.is_analysis_due:
        return None
    earlier = memory.points[len(memory.points) // 3].disk_free
    if earlier - free < limits["fallen_mib"] * MIB:
        return None
    # Used space grows as free space falls: the limit is reached when no space is free.
    trend = growth([(point.at, -float(point.disk_free)) for point in memory.points])
    forecast = forecast_crossing(trend, 0.0) if trend is not None else None
    if trend is None or forecast is None:
        return None
    settled = state.attempt.pace.epochs_done >= limits["epochs"]
    reach = limits["reach" if settled else "reach_without_epochs"] * (trend.until - trend.since)
    left = _seconds_left(state.attempt)
    time_to_full = forecast.at - trend.until
    if time_to_full > reach or time_to_full > (limits["hours"] * 3600.0 if left is None else left):
        return None
    span = f"{duration(forecast.earliest - trend.until)} to {duration(forecast.latest - trend.until)}"
    return _finding(
        state,
        f"Free disk space decreases by {size(trend.rate * 3600.0)} per hour: the disk will be full in about {duration(time_to_full)} ({span})"
        + ("." if left is None else f"; the run needs about {duration(left)} more."),
        free,
        f"free: {size(earlier)} earlier, {size(free)} now; observed for {duration(trend.until - trend.since)}",
    )


def _seconds_left(attempt: AttemptState) -> float | None:
    """Return the seconds until the planned end, from the total time per epoch so far."""
    epochs = attempt.pace.epochs
    if attempt.planned_epochs is None or len(epochs) < 2:
        return None
    seconds_per_epoch = (epochs[-1].at - epochs[0].at) / (len(epochs) - 1)
    return max(0.0, (attempt.planned_epochs - epochs[-1].epoch) * seconds_per_epoch)


def _finding(state: RunState, message: str, free: int, *details: str) -> Finding:
    saves = state.attempt.saves
    saved = f"{saves.count} saves so far" + (f", to {len(saves.by_path)} different files" if saves.by_path else "")
    many = len(saves.by_path) > 3
    return Finding(
        severity="warn",
        message=message,
        evidence=[*(details or (f"free: {size(free)}",)), saved],
        remedies=[
            *([f"keep only the best and the last checkpoint{hint(state, 'few-checkpoints')}"] if many else []),
            "delete the files of old runs",
            "write to a larger disk: --dir for the run folder, and the output folder of your script",
        ],
    )


RULE = Rule(
    kind="resources",
    on=(events.Sample,),
    judge=judge,
    limits=LIMITS,
    predicts_kill=True,
    remedies=("write-less",),
    cases=lambda: [
        Case("full before the planned end", "warn", memory_history(planned=60, disk=lambda part: 30.0 - 20.0 * part)),
        Case("full within hours, planned end unknown", "warn", memory_history(disk=lambda part: 30.0 - 20.0 * part)),
        Case("every epoch's checkpoint is kept", "warn", memory_history(disk=lambda part: 20.0 - 0.6 * int(part * 24))),
        Case("almost full already", "warn", memory_history(samples=4, disk=0.3)),
        Case("the run ends first", None, memory_history(planned=26, disk=lambda part: 30.0 - 20.0 * part)),
        Case(
            "free space falls, then stops falling",
            None,
            memory_history(disk=lambda part: 30.0 - 12.0 * min(1.0, part * 8)),
        ),
        Case("free space recovers now and then", None, memory_history(disk=lambda part: 30.0 - 10.0 * (part * 8 % 1))),
        Case("one large file", None, memory_history(disk=lambda part: 30.0 - 20.0 * (part > 0.5))),
        Case("full only in the distant future", None, memory_history(disk=lambda part: 1000.0 - 5.0 * part)),
        Case("nothing changes", None, memory_history()),
    ],
)

"""The disk fills, and will be full before the training is done.

**What it means.** Free space on the disk of the run folder falls steadily. When nothing is left, the next checkpoint is torn
and the training ends.

**Why it happens.** Every epoch's checkpoint is kept (`save_period=1`), logs or cached features are written with every step,
swap files grow on a Mac's only disk, another program writes.

**What to do.** Keep only the best and the last checkpoint, delete old runs, write to a larger disk.

**What it needs.** Samples of free space. It speaks where the forecast is before the planned end, or within twelve hours where no
end is known, and no further ahead than three times as long as it was watched (the same time again before four epochs are
done); and at once below 500 MB. Space that falls and stops, comes back now and then, or falls by single jumps is left alone.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from holdfast.diagnosis.growth import forecast_crossing, growth
from holdfast.diagnosis.rule import Case, Rule
from holdfast.diagnosis.units import MIB, duration, size
from holdfast.schema import events
from holdfast.schema.verdicts import Finding
from holdfast.testing.resources import life

if TYPE_CHECKING:
    from holdfast.diagnosis.run_state import AttemptState, RunState

LIMITS = {"least_mb": 500.0, "hours": 12.0, "epochs": 4, "reach": 3.0, "reach_without_epochs": 1.5, "fallen_mib": 256.0}


def judge(state: RunState) -> Finding | None:
    memory = state.attempt.memory
    limits = state.tuned("disk-filling", LIMITS)
    if not memory.points:
        return None
    free = memory.points[-1].disk_free
    if free < limits["least_mb"] * 1e6:
        return _finding(state.attempt, f"Only {size(free)} are free on the disk of the run folder.", free)
    if not memory.is_analysis_due:
        return None
    then = memory.points[len(memory.points) // 3].disk_free
    if then - free < limits["fallen_mib"] * MIB:
        return None
    # What is used grows as what is free falls: the limit is met where nothing is free.
    found = growth([(point.at, -float(point.disk_free)) for point in memory.points])
    forecast = forecast_crossing(found, 0.0) if found is not None else None
    if found is None or forecast is None:
        return None
    settled = state.attempt.pace.epochs_done >= limits["epochs"]
    reach = limits["reach" if settled else "reach_without_epochs"] * (found.until - found.since)
    left = _seconds_left(state.attempt)
    way = forecast.at - found.until
    if way > reach or way > (limits["hours"] * 3600.0 if left is None else left):
        return None
    span = f"{duration(forecast.earliest - found.until)} to {duration(forecast.latest - found.until)}"
    return _finding(
        state.attempt,
        f"Free space on the disk falls by {size(found.rate * 3600.0)} an hour: it is full in about {duration(way)} ({span})"
        + ("." if left is None else f"; the training needs about {duration(left)} more."),
        free,
        f"free: {size(then)} earlier, {size(free)} now; watched for {duration(found.until - found.since)}",
    )


def _seconds_left(attempt: AttemptState) -> float | None:
    """Until the planned end, by what epochs took so far, all included."""
    epochs = attempt.pace.epochs
    if attempt.planned_epochs is None or len(epochs) < 2:
        return None
    each = (epochs[-1].at - epochs[0].at) / (len(epochs) - 1)
    return max(0.0, (attempt.planned_epochs - epochs[-1].epoch) * each)


def _finding(attempt: AttemptState, message: str, free: int, *more: str) -> Finding:
    saves = attempt.saves
    saved = f"{saves.count} saves so far" + (f", to {len(saves.by_path)} different files" if saves.by_path else "")
    many = len(saves.by_path) > 3
    return Finding(
        rule="disk-filling",
        severity="warn",
        message=message,
        evidence=[*(more or (f"free: {size(free)}",)), saved],
        remedies=[
            *(["keep only the best and the last checkpoint (Ultralytics: save_period=-1)"] if many else []),
            "delete what old runs left behind",
            "write to a larger disk: --dir for the run folder, and the training's own output folder",
        ],
    )


RULE = Rule(
    id="disk-filling",
    kind="resources",
    on=(events.Sample,),
    judge=judge,
    limits=LIMITS,
    page=__doc__ or "",
    cases=[
        Case("full before the planned end", life(planned=60, disk=lambda part: 30.0 - 20.0 * part), "warn"),
        Case("full within hours, no end known", life(disk=lambda part: 30.0 - 20.0 * part), "warn"),
        Case("a checkpoint is kept with each epoch", life(disk=lambda part: 20.0 - 0.6 * int(part * 24)), "warn"),
        Case("almost full already", life(samples=4, disk=0.3), "warn"),
        Case("the training ends before", life(planned=26, disk=lambda part: 30.0 - 20.0 * part), None),
        Case("it falls and stops", life(disk=lambda part: 30.0 - 12.0 * min(1.0, part * 8)), None),
        Case("it comes back now and then", life(disk=lambda part: 30.0 - 10.0 * (part * 8 % 1)), None),
        Case("one large file", life(disk=lambda part: 30.0 - 20.0 * (part > 0.5)), None),
        Case("far ahead", life(disk=lambda part: 1000.0 - 5.0 * part), None),
        Case("nothing changes", life(), None),
    ],
)

"""How much will it write?

**What it asks.** The sizes of the checkpoints and snapshots that a short trial really wrote, times how many of them are kept: three
snapshots while the next is written, best.pt and last.pt of each stage and their copies, a file for each `save_period`, all images
unpacked beside them under `cache = "disk"`; against what is free where they go.

**Why.** A disk that fills up ends a training in the middle of writing its checkpoint, and the file from before is gone with it.

**What to do.** Make room, or send results elsewhere (`project`), keep fewer files (`save_period`), no `cache = "disk"`.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from holdfast.diagnosis.units import size
from holdfast.preflight.case_contexts import GIB, linux
from holdfast.preflight.checks.check import Answer, Case, Check, finding
from holdfast.preflight.checks.forecast_memory import recorded
from holdfast.preflight.checks.forecast_trial import SECONDS, ShortRun, get_short_run
from holdfast.preflight.cost_estimate import settings_of
from holdfast.preflight.short_run import make_request
from holdfast.supervisor.stage_command import stages_of

if TYPE_CHECKING:
    from holdfast.preflight.checks.check import CheckContext

ID = "forecast-disk"
SNAPSHOTS = 4
"""Three are kept while the next is written."""
LOGS_GROW = 64 << 20
"""Most that the record of a very long run takes."""


def run(context: CheckContext) -> Answer:
    found = get_short_run(context)
    parts = written(found)
    total = sum(parts.values())
    folder = context.cwd / str(found.settings.get("project") or "")
    free = context.free_disk(folder)
    why = ", ".join(f"{size(amount)} {what}" for what, amount in parts.items())
    message = f"about {size(total)} will be written ({why}); {size(free)} are free in {folder}"
    if free >= total:
        return Answer(message)
    least = found.measured.checkpoint + found.measured.snapshot
    return Answer(
        message,
        (
            finding(
                ID,
                "fatal" if free < 2 * least else "warn",
                f"About {size(total)} will be written, and {size(free)} are free in {folder}.",
                evidence=[why],
                remedies=[f"make room: {size(total - free)} more", "or send results elsewhere: project in [settings]"],
                confidence="likely",
            ),
        ),
    )


def written(found: ShortRun) -> dict[str, int]:
    """Bytes, by what they are for."""
    one = found.measured
    stages = stages_of(found.plan)
    parts = {
        "snapshots": SNAPSHOTS * one.snapshot,
        # Both and their copies in the vault.
        "weights": 4 * len(stages) * one.checkpoint,
        "plots and records": len(stages) * one.beside + LOGS_GROW,
    }
    kept = 0
    for stage in stages:
        settings = settings_of(found.plan, stage)
        every = settings.get("save_period", -1)
        if isinstance(every, int) and every > 0:
            kept += make_request(settings).epochs // every
    if kept:
        parts[f"{kept} files by save_period"] = kept * one.checkpoint
    if found.unpacked:
        parts["images, unpacked beside them (cache = disk)"] = found.unpacked
    return {what: amount for what, amount in parts.items() if amount}


def _on(free: float, **settings: object) -> CheckContext:
    found = recorded(**settings)  # type: ignore[arg-type]
    return linux(free_disk=lambda _: int(free * GIB), short_run=found, plan=found.plan, cwd=Path("/"))


CHECK = Check(
    id=ID,
    kind="forecast",
    run=run,
    page=__doc__ or "",
    needs=("command",),
    seconds=SECONDS,
    cases=(
        Case("room enough", _on(10.0), "passed"),
        Case("a file every epoch", _on(1.0, save_period=1), "warn"),
        Case("too little for two files", _on(0.1), "fatal"),
        Case("the trial did not run", _on(10.0, failed="no module"), "not checked"),
    ),
)

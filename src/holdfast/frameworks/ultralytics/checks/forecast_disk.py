"""How much disk space will the run need?

**What it checks.** For Ultralytics commands and plans: measures the sizes of checkpoints and snapshots in a short run, and multiplies
them by the number of files that are kept: three snapshots plus the one being written, best.pt and last.pt of each stage and their
copies, and one file for each `save_period`. With `cache = "disk"`, all uncompressed images are added. The total is compared with the
free space in the target folder.

**Why.** A full disk stops a training run while it writes a checkpoint, and the previous checkpoint is lost too.

**What to do.** Free disk space, write the results elsewhere (`project`), keep fewer files (`save_period`), or avoid `cache = "disk"`.
"""

from __future__ import annotations

from pathlib import Path

from holdfast.frameworks.ultralytics.checks.forecast_memory import recorded
from holdfast.frameworks.ultralytics.cost_estimate import merge_settings
from holdfast.frameworks.ultralytics.forecast_trial import SECONDS, ShortRun, get_short_run
from holdfast.frameworks.ultralytics.short_run import make_request
from holdfast.preflight.case_contexts import linux
from holdfast.preflight.checks.check import Answer, Case, Check, CheckContext, finding
from holdfast.schema.units import GIB, size
from holdfast.supervisor.stage_command import stages_of

SNAPSHOTS = 4
"""Three are kept while the next one is written."""
MAX_LOGS = 64 << 20
"""The maximum size of the logs of a very long run."""


def run(context: CheckContext) -> Answer:
    found = get_short_run(context)
    parts = estimate_written(found)
    total = sum(parts.values())
    folder = context.cwd / str(found.settings.get("project") or "")
    free = context.free_disk(folder)
    why = ", ".join(f"{size(amount)} {what}" for what, amount in parts.items())
    message = f"about {size(total)} will be written ({why}); {size(free)} is free in {folder}"
    if free >= total:
        return Answer(message)
    least = found.measured.checkpoint + found.measured.snapshot
    return Answer(
        message,
        (
            finding(
                "fatal" if free < 2 * least else "warn",
                f"About {size(total)} will be written, but only {size(free)} is free in {folder}.",
                evidence=[why],
                remedies=[
                    f"free disk space: {size(total - free)} more",
                    "or write the results elsewhere: project in [settings]",
                ],
                confidence="likely",
            ),
        ),
    )


def estimate_written(found: ShortRun) -> dict[str, int]:
    """Return the bytes that will be written, by purpose."""
    measured = found.measured
    stages = stages_of(found.plan)
    parts = {
        "snapshots": SNAPSHOTS * measured.snapshot,
        # best.pt, last.pt and their backups.
        "weights": 4 * len(stages) * measured.checkpoint,
        "plots and logs": len(stages) * measured.beside + MAX_LOGS,
    }
    kept = 0
    for stage in stages:
        settings = merge_settings(found.plan, stage)
        every = settings.get("save_period", -1)
        if isinstance(every, int) and every > 0:
            kept += make_request(settings).epochs // every
    if kept:
        parts[f"{kept} files by save_period"] = kept * measured.checkpoint
    if found.unpacked:
        parts["uncompressed images (cache = disk)"] = found.unpacked
    return {what: amount for what, amount in parts.items() if amount}


def _make_case(free: float, **settings: object) -> CheckContext:
    found = recorded(**settings)  # type: ignore[arg-type]
    return linux(free_disk=lambda _: int(free * GIB), short_run=found, plan=found.plan, cwd=Path("/"))


CHECK = Check(
    kind="forecast",
    run=run,
    needs=("command",),
    seconds=SECONDS,
    cases=lambda: (
        Case("enough space", _make_case(10.0), "passed"),
        Case("not enough space for a file every epoch", _make_case(1.0, save_period=1), "warn"),
        Case("not enough space for two checkpoints", _make_case(0.1), "fatal"),
        Case("the short run failed", _make_case(10.0, failed="no module"), "not checked"),
    ),
)

"""Is there room on the disk for what the run will write?

**What it asks.** The free space where checkpoints and the run's record go, and whether that folder may be written, against
what this model will need: its checkpoints, those that are kept of every attempt, snapshots, plots and logs.

**Why.** A disk that fills up ends a training in the middle of writing its checkpoint, and the file from before is gone with
it: Ultralytics and `torch.save` write in place.

**What to do.** Make room, or send the results elsewhere (`project=`, `--dir`). `save_period` keeps a further file every so
many epochs.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

from holdfast.diagnosis.units import size
from holdfast.preflight.case_contexts import GIB, linux
from holdfast.preflight.checks import estimates
from holdfast.preflight.checks.check import Answer, Case, Check, finding
from holdfast.storage.safe_files import exists

if TYPE_CHECKING:
    from collections.abc import Iterator

    from holdfast.preflight.checks.check import CheckContext
    from holdfast.schema.verdicts import Finding

ID = "disk-enough"


def run(context: CheckContext) -> Answer:
    least, needed, why = estimates.disk(context)
    folders = _folders(context)
    tightest = min(folders, key=context.free_disk)
    free = context.free_disk(tightest)
    message = f"{size(free)} free in {tightest}; about {size(needed)} are needed"
    return Answer(message, (*_locked(folders), *_full(tightest, free, least, needed, why)))


def _folders(context: CheckContext) -> list[Path]:
    """Where the run's record goes, and where the trainer writes."""
    project = context.settings.get("project")
    return [context.cwd, *([context.cwd / project] if isinstance(project, str) and project else [])]


def _locked(folders: list[Path]) -> Iterator[Finding]:
    for folder in folders:
        there = next((place for place in (folder, *folder.parents) if exists(place)), folder)
        if not os.access(there, os.W_OK):
            yield finding(
                ID,
                "fatal",
                f"{folder} cannot be written: neither checkpoints nor the record would be kept.",
                evidence=[f"no permission to write into {there}"],
                remedies=["start it in a folder of yours, or set project= and --dir to one"],
            )


def _full(folder: Path, free: int, least: float, needed: float, why: str) -> Iterator[Finding]:
    if free < needed:
        yield finding(
            ID,
            "fatal" if free < least else "warn",
            f"{size(free)} are free in {folder}, and the run will write about {size(needed)}.",
            evidence=[why, f"one checkpoint and its copy: {size(least)}"],
            remedies=[
                f"make room: {size(needed - free)} more",
                "or send results elsewhere: project=DIR, holdfast run --dir DIR",
            ],
            confidence="proven" if free < least else "likely",
        )


def _with(amount: float, **settings: Any) -> CheckContext:
    return linux(free_disk=lambda _: int(amount), cwd=Path.cwd(), settings=settings)


CHECK = Check(
    id=ID,
    kind="environment",
    run=run,
    page=__doc__ or "",
    cases=(
        Case("room enough", _with(50 * GIB), "passed"),
        Case("room for a small model", _with(3 * GIB, model="yolo11n.pt"), "passed"),
        Case("not for a large one", _with(3 * GIB, model="yolo11x.yaml"), "warn"),
        Case("nor for a file every epoch", _with(30 * GIB, model="yolo11x.yaml", epochs=100, save_period=1), "warn"),
        Case("not even one checkpoint", _with(GIB // 2, model="yolo11x.yaml"), "fatal"),
        Case("a full disk", _with(0), "fatal"),
    ),
)

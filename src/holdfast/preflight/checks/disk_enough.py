"""Is there enough disk space for what the run will write?

**What it checks.** Compares the free space for checkpoints and the run folder with the estimated size of everything that is written for
this model: its checkpoints, the copies of them that Holdfast keeps for each attempt (each execution of your command), snapshots, plots
and logs. It also checks that the folders are writable.

**Why.** A full disk stops a training run while it writes a checkpoint, and the previous checkpoint is lost too: Ultralytics and
`torch.save` overwrite the file in place.

**What to do.** Free disk space, or write the results elsewhere (`project=`, `--dir`). Increase or disable `save_period`, which keeps an
additional file every N epochs.

**Severity.** `fatal` if there is not enough space for one checkpoint and its copy, or if a folder is not writable; otherwise `warn`.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

from holdfast.preflight.case_contexts import linux
from holdfast.preflight.checks import estimates
from holdfast.preflight.checks.check import Answer, Case, Check, CheckContext, fatal, finding
from holdfast.schema.units import GIB, size
from holdfast.storage.safe_files import exists

if TYPE_CHECKING:
    from collections.abc import Iterator

    from holdfast.schema.verdicts import Finding


def run(context: CheckContext) -> Answer:
    least, needed, why = estimates.estimate_disk(context)
    folders = _folders(context)
    tightest = min(folders, key=context.free_disk)
    free = context.free_disk(tightest)
    message = f"{size(free)} free in {tightest}; about {size(needed)} needed"
    return Answer(message, (*_check_writable(folders), *_check_space(tightest, free, least, needed, why)))


def _folders(context: CheckContext) -> list[Path]:
    """Return the folders that the run and the trainer write to."""
    project = context.settings.get("project")
    return [context.cwd, *([context.cwd / project] if isinstance(project, str) and project else [])]


def _check_writable(folders: list[Path]) -> Iterator[Finding]:
    for folder in folders:
        existing = next((place for place in (folder, *folder.parents) if exists(place)), folder)
        if not os.access(existing, os.W_OK):
            yield fatal(
                f"{folder} is not writable: checkpoints and the run folder cannot be saved.",
                evidence=[f"no permission to write to {existing}"],
                remedies=["start the run in a directory that you can write to, or set project= and --dir to one"],
            )


def _check_space(folder: Path, free: int, least: float, needed: float, why: str) -> Iterator[Finding]:
    if free < needed:
        yield finding(
            "fatal" if free < least else "warn",
            f"{size(free)} is free in {folder}, but the run will write about {size(needed)}.",
            evidence=[why, f"one checkpoint and its copy: {size(least)}"],
            remedies=[
                f"free disk space: {size(needed - free)} more",
                "or write the results elsewhere: project=DIR, holdfast run --dir DIR",
            ],
            confidence="proven" if free < least else "likely",
        )


def _make_case(amount: float, **settings: Any) -> CheckContext:
    return linux(free_disk=lambda _: int(amount), cwd=Path.cwd(), settings=settings)


CHECK = Check(
    kind="environment",
    run=run,
    cases=lambda: (
        Case("enough space", _make_case(50 * GIB), "passed"),
        Case("not enough space for the whole run", _make_case(GIB), "warn"),
        Case("a full disk", _make_case(0), "fatal"),
    ),
)

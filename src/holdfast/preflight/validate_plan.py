"""Validates a plan before any training starts: the data, the model, the interpreter, the folders and the disk.

A problem prevents the plan from running; a note is only information. Each is one sentence with the next step.
"""

from __future__ import annotations

import shutil
import tempfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from holdfast.frameworks import all_frameworks, by_name
from holdfast.machine import this_machine
from holdfast.process.python_discovery import find_imports, find_script
from holdfast.schema.units import size
from holdfast.storage.safe_files import is_dir
from holdfast.supervisor.stage_command import stages_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from holdfast.schema.plan import Plan


@dataclass(frozen=True)
class Validation:
    problems: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)


def find_problems(plan: Plan) -> list[str]:
    """Return the problems that prevent this plan from running."""
    return validate(plan).problems


def validate(plan: Plan) -> Validation:
    result = Validation()
    cwd = Path(plan.cwd)
    if not is_dir(cwd):
        result.problems.append(
            f"The working folder of the training, {cwd}, does not exist: fix cwd, or create the folder."
        )
        return result
    framework = by_name(plan.trainer)
    need = framework.validate(plan, cwd, result)
    if not framework.builds_command and any({**plan.settings, **stage.settings} for stage in stages_of(plan)):
        result.notes.extend(_find_ignored_settings(plan, cwd))
    folders = tuple(dict.fromkeys((cwd, framework.results_folder(plan, cwd))))
    result.problems.extend(_check_folders(folders))
    result.problems.extend(_check_disk(folders, need))
    result.problems.extend(_check_memory(plan))
    return result


def _find_ignored_settings(plan: Plan, cwd: Path) -> Iterator[str]:
    """Yield a note for each command that does not use a framework: settings only apply to those."""
    for command in dict.fromkeys(tuple(stage.command or plan.command) for stage in stages_of(plan)):
        script = find_script(command, cwd)
        if script is None:
            continue
        imports = find_imports(script)
        if not any(framework.recognizes((), imports) for framework in all_frameworks()):
            titles = " or ".join(framework.title for framework in all_frameworks())
            yield (
                f"{script} does not import {titles} itself: if nothing that it calls does, the [settings] of this "
                "plan do nothing. Write them into the command, and list its flags in [flags]."
            )


def _check_folders(folders: Sequence[Path]) -> Iterator[str]:
    for folder in folders:
        try:
            with tempfile.TemporaryFile(dir=_find_existing(folder)) as file:
                file.write(b"x")
        except OSError as error:
            yield f"{folder} is not writable ({error.strerror}): change its permissions, or set another project."


def _find_existing(folder: Path) -> Path:
    return next(place for place in (folder, *folder.absolute().parents) if is_dir(place))


def _check_disk(folders: Sequence[Path], need: Mapping[str, float]) -> Iterator[str]:
    total = sum(need.values())
    reported = set()
    for folder in folders:
        place = _find_existing(folder)
        free = shutil.disk_usage(place).free
        device = place.stat().st_dev
        if free < total and device not in reported:
            reported.add(device)
            parts = ", ".join(f"{size(amount)} {what}" for what, amount in need.items())
            yield (
                f"The disk of {folder} has {size(free)} free, but this plan will write about {size(total)} ({parts}): free "
                "disk space, or move the plan to another disk."
            )


def _check_memory(plan: Plan) -> Iterator[str]:
    machine = this_machine().memory()
    if plan.budget.memory is not None and plan.budget.memory > machine.limit:
        yield (
            f"The budget allows {size(plan.budget.memory)} of memory, but there is only {size(machine.limit)} "
            f'({machine.limited_by}): write memory = "80%".'
        )

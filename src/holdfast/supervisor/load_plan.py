"""Loading a plan file on this machine: checked against its memory, Holdfast's rules and the installed Ultralytics."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from holdfast.diagnosis.rules import by_id
from holdfast.machine import this_machine
from holdfast.process.python_discovery import find_python
from holdfast.process.ultralytics_install import find_ultralytics
from holdfast.schema.errors import CommandNotRunnable
from holdfast.storage.folder import working_folder
from holdfast.storage.plan.load import ReadContext, read
from holdfast.supervisor.stage_command import yolo

if TYPE_CHECKING:
    from collections.abc import Collection
    from pathlib import Path

    from holdfast.process.ultralytics_install import UltralyticsInstall
    from holdfast.schema.plan import Plan


def open_plan(path: Path) -> Plan:
    """Read a plan file. Raise PlanInvalid with everything that is wrong with it."""
    rules = {name: tuple(rule.limits) for name, rule in by_id().items()}
    return read(
        path, ReadContext(memory=lambda: this_machine().memory().limit, rules=rules, settings_of=_known_settings)
    )


def ultralytics_of(python: str | None) -> UltralyticsInstall | None:
    """Return the Ultralytics installation that a plan with this `python` trains with."""
    if python is not None:
        return find_ultralytics([python])
    try:
        command = yolo(None)
    except CommandNotRunnable:
        return None
    interpreter = find_python(command, working_folder(), os.environ)
    return find_ultralytics(interpreter) if interpreter is not None else None


def _known_settings(python: str | None) -> Collection[str]:
    install = ultralytics_of(python)
    return install.settings if install is not None else ()

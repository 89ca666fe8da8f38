"""Opening a plan file on this machine: read against its memory, our rules, and the Ultralytics that is installed."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from holdfast.diagnosis.rules import by_id
from holdfast.machine import this_machine
from holdfast.process.python_discovery import find_python
from holdfast.process.ultralytics_install import find_ultralytics
from holdfast.schema.errors import CommandNotRunnable
from holdfast.storage.folder import working_folder
from holdfast.storage.plan.load import Known, read
from holdfast.supervisor.stage_command import yolo

if TYPE_CHECKING:
    from collections.abc import Collection
    from pathlib import Path

    from holdfast.process.ultralytics_install import UltralyticsInstall
    from holdfast.schema.plan import Plan


def open_plan(path: Path) -> Plan:
    """Raises PlanInvalid with all that is wrong with the file."""
    rules = {name: tuple(rule.limits) for name, rule in by_id().items()}
    return read(path, Known(memory=lambda: this_machine().memory().limit, rules=rules, settings_of=_settings_of))


def ultralytics_of(python: str | None) -> UltralyticsInstall | None:
    """The Ultralytics that a plan with this `python` trains with."""
    if python is not None:
        return find_ultralytics([python])
    try:
        command = yolo(None)
    except CommandNotRunnable:
        return None
    behind = find_python(command, working_folder(), os.environ)
    return find_ultralytics(behind) if behind is not None else None


def _settings_of(python: str | None) -> Collection[str]:
    home = ultralytics_of(python)
    return home.settings if home is not None else ()

"""The command of a stage, built from the plan and the weights that the stage starts with."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from holdfast.schema.errors import CommandNotRunnable
from holdfast.schema.plan import Stage

if TYPE_CHECKING:
    from holdfast.schema.plan import Plan

ENTRY = "import sys; sys.path[:] = [p for p in sys.path if p]; from ultralytics.cfg import entrypoint; entrypoint()"
"""Equivalent of the `yolo` command, for an interpreter without it: nothing is imported from the working folder."""
DEFAULT_SIZE = 640
"""Pixels, if the plan does not set imgsz."""
WEIGHTS = "{weights}"
"""Placeholder in a command for the weights of the previous stage."""


def stages_of(plan: Plan) -> list[Stage]:
    """Return the stages of a plan; a plan without stages is one stage."""
    return plan.stages or [Stage(name=plan.name or "")]


def epochs_after(plan: Plan, number: int) -> float:
    """Return the length of the later stages in epochs of this one. The time of an epoch is proportional to its pixels."""
    current, *later = [{**plan.settings, **stage.settings} for stage in plan.stages[number - 1 :]]
    pixels = float(current.get("imgsz") or DEFAULT_SIZE) ** 2
    return sum(
        float(settings.get("epochs") or 0) * float(settings.get("imgsz") or DEFAULT_SIZE) ** 2 / pixels
        for settings in later
    )


def stage_plan(plan: Plan, stage: Stage, weights: str | None = None) -> Plan:
    """Return the plan of a single stage, with the command that runs it."""
    settings = {**plan.settings, **stage.settings}
    if plan.trainer == "ultralytics":
        if weights is not None:
            settings["model"] = weights
        # Otherwise Ultralytics saves to the folder in its own settings file, which may belong to another project.
        settings.setdefault("project", str(Path(plan.cwd) / "runs" / str(settings.get("task", "detect"))))
        settings.setdefault("name", "-".join(part for part in (plan.name, stage.name) if part) or "train")
        command = ultralytics_command(plan.python, settings)
    else:
        command = list(stage.command or plan.command)
        if weights is None and any(WEIGHTS in word for word in command):
            raise CommandNotRunnable(
                f"The command of stage {stage.name} uses {WEIGHTS}, but no weights from an earlier stage were found.",
                next_step="in the plan, specify where they are saved: checkpoint = 'GLOB'",
            )
        command = [word.replace(WEIGHTS, weights or "") for word in command]
    return msgspec.structs.replace(plan, command=command, settings=settings, stages=[], name=stage.name or plan.name)


def ultralytics_command(python: str | None, settings: dict[str, Any]) -> list[str]:
    """Return the command as a user would type it: `yolo detect train model=... data=...`."""
    arguments = dict(settings)
    task = str(arguments.pop("task", "detect"))
    arguments.pop("mode", None)
    return [*yolo(python), task, "train", *(f"{name}={_format_value(value)}" for name, value in arguments.items())]


def yolo(python: str | None) -> list[str]:
    """Return the `yolo` command of this interpreter; without an interpreter, that on PATH or in Holdfast's own environment."""
    local = Path(python or sys.executable).parent / "yolo"
    if python is not None:
        return [str(local)] if local.is_file() else [python, "-c", ENTRY]
    chosen = shutil.which("yolo") or (str(local) if local.is_file() else None)
    if chosen is None:
        raise CommandNotRunnable(
            "Ultralytics was not found: there is no `yolo` command on PATH or in Holdfast's environment.",
            next_step="pip install ultralytics, or set its interpreter in the plan: python = '/path/to/venv/bin/python'",
        )
    return [chosen]


def _format_value(value: Any) -> str:
    if isinstance(value, (list, tuple)):
        return "[" + ",".join(_format_value(item) for item in value) + "]"
    return str(value)

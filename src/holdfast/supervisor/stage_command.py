"""From a plan to what is really started: the command of a stage, with the weights that it begins with."""

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
"""What the `yolo` command does, for an interpreter that has no such command beside it: nothing is imported from the working folder."""
DEFAULT_SIZE = 640
"""Pixels, where a plan does not say."""
WEIGHTS = "{weights}"
"""Where a command takes the weights of the stage before."""


def stages_of(plan: Plan) -> list[Stage]:
    """A plan without stages is one stage."""
    return plan.stages or [Stage(name=plan.name or "")]


def epochs_after(plan: Plan, number: int) -> float:
    """What the stages after this one come to, in epochs of this one: an epoch takes as long as it has pixels."""
    current, *later = [{**plan.settings, **stage.settings} for stage in plan.stages[number - 1 :]]
    pixels = float(current.get("imgsz") or DEFAULT_SIZE) ** 2
    return sum(
        float(settings.get("epochs") or 0) * float(settings.get("imgsz") or DEFAULT_SIZE) ** 2 / pixels for settings in later
    )


def stage_plan(plan: Plan, stage: Stage, weights: str | None = None) -> Plan:
    """The plan of one stage alone, with the command that carries it out."""
    settings = {**plan.settings, **stage.settings}
    if plan.trainer == "ultralytics":
        if weights is not None:
            settings["model"] = weights
        # Ultralytics would put them where its own settings file says, which may be the folder of another project.
        settings.setdefault("project", str(Path(plan.cwd) / "runs" / str(settings.get("task", "detect"))))
        settings.setdefault("name", "-".join(part for part in (plan.name, stage.name) if part) or "train")
        command = ultralytics_command(plan.python, settings)
    else:
        command = list(stage.command or plan.command)
        if weights is None and any(WEIGHTS in word for word in command):
            raise CommandNotRunnable(
                f"The command of stage {stage.name} takes {WEIGHTS}, and the stages before it left no weights that are known.",
                next_step="say where they are saved: checkpoint = 'GLOB' in the plan",
            )
        command = [word.replace(WEIGHTS, weights or "") for word in command]
    return msgspec.structs.replace(plan, command=command, settings=settings, stages=[], name=stage.name or plan.name)


def ultralytics_command(python: str | None, settings: dict[str, Any]) -> list[str]:
    """As one would type it: `yolo detect train model=... data=...`."""
    arguments = dict(settings)
    task = str(arguments.pop("task", "detect"))
    arguments.pop("mode", None)
    return [*yolo(python), task, "train", *(f"{name}={_format_value(value)}" for name, value in arguments.items())]


def yolo(python: str | None) -> list[str]:
    """The `yolo` of this interpreter; without one, that of the path or of Holdfast's own environment."""
    local = Path(python or sys.executable).parent / "yolo"
    if python is not None:
        return [str(local)] if local.is_file() else [python, "-c", ENTRY]
    chosen = shutil.which("yolo") or (str(local) if local.is_file() else None)
    if chosen is None:
        raise CommandNotRunnable(
            "Ultralytics is not installed where Holdfast looks for it: there is no `yolo` command.",
            next_step="pip install ultralytics, or name its interpreter in the plan: python = '/path/to/venv/bin/python'",
        )
    return [chosen]


def _format_value(value: Any) -> str:
    if isinstance(value, (list, tuple)):
        return "[" + ",".join(_format_value(item) for item in value) + "]"
    return str(value)

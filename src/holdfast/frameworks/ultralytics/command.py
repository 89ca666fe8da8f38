"""The command line of Ultralytics: `yolo detect train model=yolo11n.yaml data=data.yaml epochs=50`."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from holdfast.process.parse_value import parse_value
from holdfast.schema.errors import CommandNotRunnable

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

PROGRAMS = ("yolo", "ultralytics")
TASKS = ("detect", "segment", "classify", "pose", "obb")
ENTRY = "import sys; sys.path[:] = [p for p in sys.path if p]; from ultralytics.cfg import entrypoint; entrypoint()"
_TASK_ENDINGS = {
    "-seg": "segment",
    "-cls": "classify",
    "-pose": "pose",
    "-obb": "obb",
    "-sem": "semantic",
    "-depth": "depth",
}


def find_program(command: Sequence[str]) -> int | None:
    """Return the index of `yolo` in a command; None if it is not there. Arguments of a script and values of flags do not count."""
    for place, word in enumerate(command[:4]):
        if word.endswith((".py", ".sh")):
            break
        is_value = place and command[place - 1].startswith("--")
        if Path(word).name in PROGRAMS and not is_value:
            return place
    return None


def parse_command(command: Sequence[str]) -> dict[str, Any] | None:
    """Return the settings of a command that trains; None for any other command."""
    words = list(command)
    at = find_program(words)
    if at is None or ("train" not in words[at:] and "mode=train" not in words[at:]):
        return None
    pairs = (word.partition("=") for word in words[at + 1 :])
    settings = {name: parse_value(value) for name, equals, value in pairs if equals}
    settings.pop("mode", None)
    settings.setdefault("task", next((word for word in words[at + 1 :] if word in TASKS), task_of(settings)))
    return {name: value for name, value in settings.items() if value is not None}


def task_of(settings: Mapping[str, Any]) -> str:
    """Return the task in the settings, else the task from the model's name: yolo11n-seg.yaml."""
    if settings.get("task"):
        return str(settings["task"])
    stem = Path(str(settings.get("model", ""))).stem
    return next((task for ending, task in _TASK_ENDINGS.items() if stem.endswith(ending)), "detect")


def build_command(python: str | None, settings: Mapping[str, Any]) -> list[str]:
    """Return the command as a user would type it."""
    arguments = dict(settings)
    task = str(arguments.pop("task", "detect"))
    arguments.pop("mode", None)
    return [*find_yolo(python), task, "train", *(f"{name}={_format_value(value)}" for name, value in arguments.items())]


def find_yolo(python: str | None) -> list[str]:
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

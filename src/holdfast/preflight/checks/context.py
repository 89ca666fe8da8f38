"""From what the user typed to the ground that the checks look at."""

from __future__ import annotations

import contextlib
import errno
import importlib.util
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from holdfast.machine import this_machine
from holdfast.preflight.checks.check import CheckContext
from holdfast.preflight.checks.interpreter import FACTS, PythonClient, facts_in
from holdfast.process.launch_errors import make_launch_error
from holdfast.process.python_discovery import default_python, find_imports, find_program, find_python, find_script
from holdfast.schema.errors import CommandNotRunnable
from holdfast.storage.folder import working_folder
from holdfast.storage.safe_files import is_file
from holdfast.supervisor.stage_command import yolo

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from holdfast.machine import Machine
    from holdfast.preflight.checks.interpreter import Interpreter
    from holdfast.schema.plan import Plan

FACTS_SECONDS = 90.0
"""Importing torch from a cold, busy disk takes long."""
SHARES_A_PROCESS = ("faiss", "sklearn", "xgboost", "lightgbm")
"""Libraries that bring an OpenMP runtime of their own."""
_NAMES = {
    "batch-size": "batch",
    "batch_size": "batch",
    "bs": "batch",
    "img": "imgsz",
    "img-size": "imgsz",
    "img_size": "imgsz",
    "weights": "model",
}
"""What other trainers call Ultralytics' settings."""
_SETTINGS = frozenset(
    (
        *("batch", "cache", "close_mosaic", "data", "device", "epochs", "imgsz", "model", "optimizer", "project"),
        *("save_period", "val", "workers"),
    )
)


def build_context(
    *,
    command: Sequence[str] = (),
    plan: Plan | None = None,
    device: str | None = None,
    data: Path | None = None,
    write_split: Path | None = None,
    confines: bool = True,
    machine: Machine | None = None,
    environment: Mapping[str, str] = os.environ,
    seconds: float = FACTS_SECONDS,
) -> tuple[CheckContext, PythonClient | None]:
    """The ground, and what asks the interpreter: to be closed when all is done."""
    cwd = Path(plan.cwd) if plan is not None else working_folder()
    words = tuple(command) or tuple(plan.command if plan is not None else ())
    variables = {**environment, **(plan.environment if plan is not None else {})}
    settings = {**settings_in(words), **_planned(plan)}
    imports = find_imports(script) if (script := find_script(words, cwd)) is not None else frozenset[str]()
    _check_command(tuple(command), cwd, variables)
    python = _python(words, plan, cwd, variables)
    asker = None if python is None else PythonClient(python, cwd, variables)
    known, why = (None, _NO_PYTHON) if asker is None else _asked(asker, imports, python or [], seconds)
    named = data if data is not None else settings.get("data")
    return CheckContext(
        cwd=cwd,
        machine=machine if machine is not None else this_machine(),
        environment=variables,
        interpreter=known,
        no_interpreter=why,
        guessed=plan is None and find_python(words, cwd, variables) is None,
        command=words,
        plan=plan,
        device=_device(device, plan, settings),
        imports=imports,
        settings=settings,
        data=cwd / str(named) if named and str(named).endswith((".yaml", ".yml")) else None,
        write_split=write_split,
        confines=confines,
        asks=asker,
    ), asker


def _check_command(command: Sequence[str], cwd: Path, environment: Mapping[str, str]) -> None:
    """Raises CommandNotRunnable where the first second of the training would."""
    if not command:
        return
    if find_program(command[0], cwd, environment) is None:
        raise make_launch_error(command, cwd, environment, FileNotFoundError(errno.ENOENT, "no such file"))
    python = find_python(command, cwd, environment) or []
    script = command[len(python)] if list(command[: len(python)]) == python and len(command) > len(python) else ""
    if script.endswith(".py") and not is_file(cwd / script):
        raise CommandNotRunnable(
            f"There is no {script} in {cwd}.", next_step="check the spelling, or go to the folder that it is in."
        )


_NO_PYTHON = "which Python the training runs under is not known, and there is none on the PATH"


def _python(words: Sequence[str], plan: Plan | None, cwd: Path, environment: Mapping[str, str]) -> list[str] | None:
    """The command's own; the plan's; Holdfast's own where it has torch; what `python` means here."""
    if plan is not None and plan.python:
        found = find_program(plan.python, cwd, environment)
        return [str(found)] if found is not None else None
    if words:
        return find_python(words, cwd, environment) or default_python(environment)
    if plan is not None:
        with contextlib.suppress(CommandNotRunnable):
            return find_python(yolo(None), cwd, environment)
    if importlib.util.find_spec("torch") is not None:
        return [sys.executable]
    return default_python(environment) or [sys.executable]


def _asked(
    asker: PythonClient, imports: frozenset[str], python: list[str], seconds: float
) -> tuple[Interpreter | None, str]:
    # Where the script cannot be read, the one library that is known to crash beside torch.
    beside = [name for name in SHARES_A_PROCESS if name in imports] if imports else ["faiss"]
    said = asker(FACTS, beside, "", seconds)
    known = facts_in(said)
    if known is not None:
        return known, ""
    how = said.how_it_ended or "it said nothing"
    return None, f"{' '.join(python)} could not be asked: {said.last_line or how}"


def _planned(plan: Plan | None) -> dict[str, Any]:
    """Of the first stage, with what is set over it."""
    if plan is None:
        return {}
    first = plan.stages[0].settings if plan.stages else {}
    return {**plan.settings, **first, **plan.overrides}


def _device(asked: str | None, plan: Plan | None, settings: Mapping[str, Any]) -> str | None:
    if asked is not None:
        return asked
    if plan is not None and plan.policy.devices:
        return plan.policy.devices[0]
    named = settings.get("device")
    if named is None or named == "":
        return None
    return ",".join(map(str, named)) if isinstance(named, list) else str(named)


def settings_in(command: Sequence[str]) -> dict[str, Any]:
    """Settings in the words of a command: `imgsz=640` as Ultralytics has them, `--img 640` and `--img=640` as others do."""
    found: dict[str, Any] = {}
    for n, word in enumerate(command):
        name, given, value = word.partition("=")
        plain = name.removeprefix("--") if name.startswith("--") else name
        plain = _NAMES.get(plain, plain)
        if plain not in _SETTINGS:
            continue
        if given:
            found[plain] = value_of(value)
        elif name.startswith("--") and n + 1 < len(command) and not command[n + 1].startswith("--"):
            found[plain] = value_of(command[n + 1])
    return found


def value_of(text: str) -> Any:
    lower = text.strip().lower()
    if lower in ("true", "false"):
        return lower == "true"
    if lower in ("none", "null"):
        return None
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return text.strip("\"'")

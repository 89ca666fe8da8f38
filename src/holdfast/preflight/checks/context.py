"""The context of the checks, built from the command line or the plan."""

from __future__ import annotations

import contextlib
import errno
import importlib.util
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from holdfast.frameworks import by_name, framework_packages
from holdfast.machine import this_machine
from holdfast.preflight.checks.check import CheckContext
from holdfast.preflight.checks.interpreter import FACTS, PACKAGES, PythonClient, parse_facts
from holdfast.process.launch_errors import make_launch_error
from holdfast.process.parse_value import parse_value
from holdfast.process.python_discovery import default_python, find_imports, find_program, find_python, find_script
from holdfast.schema.errors import CommandNotRunnable
from holdfast.storage.folder import working_folder
from holdfast.storage.safe_files import is_file

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from holdfast.machine import Machine
    from holdfast.preflight.checks.interpreter import Interpreter
    from holdfast.schema.plan import Plan

FACTS_SECONDS = 90.0
"""Importing torch from a cold, busy disk takes a long time."""
OPENMP_LIBRARIES = ("faiss", "sklearn", "xgboost", "lightgbm")
"""Libraries that bring their own OpenMP runtime."""
_NAMES = {
    "batch-size": "batch",
    "batch_size": "batch",
    "bs": "batch",
    "img": "imgsz",
    "img-size": "imgsz",
    "img_size": "imgsz",
    "weights": "model",
}
"""Other names of these settings, as scripts use them."""
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
    confine_writes: bool = True,
    machine: Machine | None = None,
    environment: Mapping[str, str] = os.environ,
    seconds: float = FACTS_SECONDS,
) -> tuple[CheckContext, PythonClient | None]:
    """Return the context, and the client that queries the interpreter. The caller must close the client."""
    cwd = Path(plan.cwd) if plan is not None else working_folder()
    command_words = tuple(command) or tuple(plan.command if plan is not None else ())
    variables = {**environment, **(plan.environment if plan is not None else {})}
    settings = {**parse_settings(command_words), **_merge_plan_settings(plan)}
    imports = find_imports(script) if (script := find_script(command_words, cwd)) is not None else frozenset[str]()
    _check_command(tuple(command), cwd, variables)
    python = _find_python(command_words, plan, cwd, variables)
    client = None if python is None else PythonClient(python, cwd, variables)
    known, why = (None, _NO_PYTHON) if client is None else _query_facts(client, imports, python or [], seconds)
    named = data if data is not None else settings.get("data")
    return CheckContext(
        cwd=cwd,
        machine=machine if machine is not None else this_machine(),
        environment=variables,
        interpreter=known,
        no_interpreter=why,
        is_guessed=plan is None and find_python(command_words, cwd, variables) is None,
        command=command_words,
        plan=plan,
        device=_device(device, plan, settings),
        imports=imports,
        settings=settings,
        data=cwd / str(named) if named and str(named).endswith((".yaml", ".yml")) else None,
        write_split=write_split,
        confine_writes=confine_writes,
        run_python=client,
    ), client


def _check_command(command: Sequence[str], cwd: Path, environment: Mapping[str, str]) -> None:
    """Raise CommandNotRunnable if the command cannot even start."""
    if not command:
        return
    if find_program(command[0], cwd, environment) is None:
        raise make_launch_error(command, cwd, environment, FileNotFoundError(errno.ENOENT, "no such file"))
    python = find_python(command, cwd, environment) or []
    script = command[len(python)] if list(command[: len(python)]) == python and len(command) > len(python) else ""
    if script.endswith(".py") and not is_file(cwd / script):
        raise CommandNotRunnable(
            f"There is no {script} in {cwd}.", next_step="check the spelling, or change to the folder that contains it."
        )


_NO_PYTHON = "the Python interpreter of your script is unknown, and there is no Python on the PATH"


def _find_python(
    command_words: Sequence[str], plan: Plan | None, cwd: Path, environment: Mapping[str, str]
) -> list[str] | None:
    """Return the interpreter of the plan or the command, else Holdfast's own if it has torch, else `python` on the PATH."""
    if plan is not None and plan.python:
        found = find_program(plan.python, cwd, environment)
        return [str(found)] if found is not None else None
    if command_words:
        return find_python(command_words, cwd, environment) or default_python(environment)
    if plan is not None:
        with contextlib.suppress(CommandNotRunnable):
            return find_python(by_name(plan.trainer).find_command(), cwd, environment)
    if importlib.util.find_spec("torch") is not None:
        return [sys.executable]
    return default_python(environment) or [sys.executable]


def _query_facts(
    client: PythonClient, imports: frozenset[str], python: list[str], seconds: float
) -> tuple[Interpreter | None, str]:
    # If the script cannot be read, try the one library that is known to crash together with torch.
    libraries = [name for name in OPENMP_LIBRARIES if name in imports] if imports else ["faiss"]
    packages = [*PACKAGES, *framework_packages()]
    reply = client(FACTS, [",".join(packages), *libraries], "", seconds)
    known = parse_facts(reply)
    if known is not None:
        return known, ""
    why = reply.failure or "it printed nothing"
    return None, f"{' '.join(python)} could not be queried: {reply.last_line or why}"


def _merge_plan_settings(plan: Plan | None) -> dict[str, Any]:
    """Return the settings of the first stage, with the plan's overrides."""
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


def parse_settings(command: Sequence[str]) -> dict[str, Any]:
    """Parse settings from a command: `imgsz=640`, `--img 640` and `--img=640`."""
    found: dict[str, Any] = {}
    for n, word in enumerate(command):
        name, equals, value = word.partition("=")
        plain = name.removeprefix("--") if name.startswith("--") else name
        plain = _NAMES.get(plain, plain)
        if plain not in _SETTINGS:
            continue
        if equals:
            found[plain] = parse_value(value)
        elif name.startswith("--") and n + 1 < len(command) and not command[n + 1].startswith("--"):
            found[plain] = parse_value(command[n + 1])
    return found

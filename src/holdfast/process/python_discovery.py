"""Which Python a command would run under, found without running it."""

from __future__ import annotations

import ast
import os
import re
import shlex
import shutil
from pathlib import Path
from typing import TYPE_CHECKING

from holdfast.storage.safe_files import expand_user, open_regular

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

_PYTHON = re.compile(r"^(?:python|pypy)[\d.]*t?$")
_PASS_ON = frozenset(
    (
        *("env", "nice", "ionice", "nohup", "time", "caffeinate", "taskset", "stdbuf", "setsid", "chrt", "numactl"),
        *("uv", "poetry", "pipenv", "pdm", "hatch", "rye", "conda", "mamba", "micromamba"),
    )
)
"""Programs that run the rest of their command line in this place, so that a Python behind them can be asked the same way."""
_FLAGS = re.compile(r"^-[IEsSPBObuqv]+$")
_EVERYBODYS = frozenset(("/bin", "/usr/bin", "/usr/local/bin", "/opt/homebrew/bin"))
"""Folders in which a script and a Python have nothing to do with each other."""
_MAX_SOURCE = 1_000_000


def python_of(command: Sequence[str], cwd: Path, environment: Mapping[str, str]) -> list[str] | None:
    """The words that start the same Python with a program of ours behind them; None where that cannot be told."""
    if not command:
        return None
    at = 0
    if Path(command[0]).name in _PASS_ON:
        at = next((n for n, word in enumerate(command) if n and _PYTHON.match(Path(word).name)), 0)
    if _PYTHON.match(Path(command[at]).name):
        flags = command[at + 1 :]
        kept = next((n for n, word in enumerate(flags) if not _FLAGS.match(word)), len(flags))
        return [*command[: at + 1], *flags[:kept]]
    program = program_on_path(command[0], cwd, environment)
    return None if program is None else _python_behind(program, environment)


def default_python(environment: Mapping[str, str]) -> list[str] | None:
    """The one beside `yolo` is for the caller to prefer; this is what `python` means here."""
    for name in ("python", "python3"):
        if found := shutil.which(name, path=environment.get("PATH")):
            return [found]
    return None


def program_on_path(program: str, cwd: Path, environment: Mapping[str, str]) -> Path | None:
    if os.sep in program:
        path = cwd / expand_user(program)
        return path if os.path.isfile(path) else None  # noqa: PTH113 - no error where it may not be looked at
    found = shutil.which(program, path=environment.get("PATH"))
    return Path(found) if found else None


def _python_behind(program: Path, environment: Mapping[str, str]) -> list[str] | None:
    """Of a script that names its interpreter, as pip writes `yolo` and `torchrun`; else the Python in the same folder,
    as in a virtual environment or among pyenv's shims.
    """
    try:
        with open_regular(program) as file:
            lines = [file.readline(1000).decode("utf-8", "replace").strip() for _ in range(2)]
    except OSError:
        return None
    for line in lines:
        # The second line is how pip writes a path that is too long for a first one: '''exec' /path/python "$0" "$@"
        words = _words(line.removeprefix("#!").removeprefix("'''exec'"))
        if words and Path(words[0]).name == "env":
            words = [word for word in words[1:] if not word.startswith("-") and "=" not in word]
            words[:1] = [found for word in words[:1] if (found := shutil.which(word, path=environment.get("PATH")))]
        if words and _PYTHON.match(Path(words[0]).name) and Path(words[0]).exists():
            return [words[0]]
    if not lines[0].startswith("#!") or str(program.parent) in _EVERYBODYS:
        return None
    beside = next((path for name in ("python", "python3") if (path := program.with_name(name)).exists()), None)
    return None if beside is None else [str(beside)]


def _words(line: str) -> list[str]:
    try:
        return shlex.split(line)
    except ValueError:
        return []


def script_of(command: Sequence[str], cwd: Path) -> Path | None:
    """The Python file that a command runs, where it names one."""
    for word in command:
        if word.endswith(".py") and os.path.isfile(cwd / word):  # noqa: PTH113 - as above
            return cwd / word
    return None


def imports_of(script: Path) -> frozenset[str]:
    """The packages that a script imports by name, wherever in it; nothing where it cannot be read as Python."""
    try:
        with open_regular(script) as file:
            tree = ast.parse(file.read(_MAX_SOURCE))
    except (OSError, SyntaxError, ValueError, RecursionError, MemoryError):
        return frozenset()
    found: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found.update(alias.name.partition(".")[0] for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            found.add(node.module.partition(".")[0])
    return frozenset(found)

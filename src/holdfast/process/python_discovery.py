"""The Python that a command would use, found without running the command."""

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
_WRAPPERS = frozenset(
    (
        *("env", "nice", "ionice", "nohup", "time", "caffeinate", "taskset", "stdbuf", "setsid", "chrt", "numactl"),
        *("uv", "poetry", "pipenv", "pdm", "hatch", "rye", "conda", "mamba", "micromamba"),
    )
)
"""Programs that run the rest of their command line on this machine, so a Python after them can be run the same way."""
_FLAGS = re.compile(r"^-[IEsSPBObuqv]+$")
_SHARED_FOLDERS = frozenset(("/bin", "/usr/bin", "/usr/local/bin", "/opt/homebrew/bin"))
"""Folders where a script and a Python in the same folder are unrelated."""
_MAX_SOURCE_BYTES = 1_000_000


def find_python(command: Sequence[str], cwd: Path, environment: Mapping[str, str]) -> list[str] | None:
    """Return the words that start the same Python, so that a program can follow them; None if that is unknown."""
    if not command:
        return None
    index = 0
    if Path(command[0]).name in _WRAPPERS:
        index = next((n for n, word in enumerate(command) if n and _PYTHON.match(Path(word).name)), 0)
    if _PYTHON.match(Path(command[index]).name):
        flags = command[index + 1 :]
        flag_count = next((n for n, word in enumerate(flags) if not _FLAGS.match(word)), len(flags))
        return [*command[: index + 1], *flags[:flag_count]]
    program = find_program(command[0], cwd, environment)
    return None if program is None else _find_script_python(program, environment)


def default_python(environment: Mapping[str, str]) -> list[str] | None:
    """Return what `python` means here. A caller may prefer the Python in the same folder as `yolo`."""
    for name in ("python", "python3"):
        if found := shutil.which(name, path=environment.get("PATH")):
            return [found]
    return None


def find_program(program: str, cwd: Path, environment: Mapping[str, str]) -> Path | None:
    if os.sep in program:
        path = cwd / expand_user(program)
        return path if os.path.isfile(path) else None  # noqa: PTH113 - pathlib raises if access is denied
    found = shutil.which(program, path=environment.get("PATH"))
    return Path(found) if found else None


def _find_script_python(program: Path, environment: Mapping[str, str]) -> list[str] | None:
    """Return the Python of a script: the interpreter that it names, as in the `yolo` and `torchrun` that pip writes.

    Otherwise the Python in the same folder, as in a virtual environment or among pyenv's shims.
    """
    try:
        with open_regular(program) as file:
            lines = [file.readline(1000).decode("utf-8", "replace").strip() for _ in range(2)]
    except OSError:
        return None
    for line in lines:
        # pip writes a path that is too long for the first line into the second one: '''exec' /path/python "$0" "$@"
        words = _split_words(line.removeprefix("#!").removeprefix("'''exec'"))
        if words and Path(words[0]).name == "env":
            words = [word for word in words[1:] if not word.startswith("-") and "=" not in word]
            words[:1] = [found for word in words[:1] if (found := shutil.which(word, path=environment.get("PATH")))]
        if words and _PYTHON.match(Path(words[0]).name) and Path(words[0]).exists():
            return [words[0]]
    if not lines[0].startswith("#!") or str(program.parent) in _SHARED_FOLDERS:
        return None
    sibling = next((path for name in ("python", "python3") if (path := program.with_name(name)).exists()), None)
    return None if sibling is None else [str(sibling)]


def _split_words(line: str) -> list[str]:
    try:
        return shlex.split(line)
    except ValueError:
        return []


def find_script(command: Sequence[str], cwd: Path) -> Path | None:
    """Return the Python file that a command runs, if it names one."""
    for word in command:
        if word.endswith(".py") and os.path.isfile(cwd / word):  # noqa: PTH113 - as above
            return cwd / word
    return None


def find_imports(script: Path) -> frozenset[str]:
    """Return the packages that a script imports by name, anywhere in it; empty if it cannot be parsed as Python."""
    try:
        with open_regular(script) as file:
            tree = ast.parse(file.read(_MAX_SOURCE_BYTES))
    except (OSError, SyntaxError, ValueError, RecursionError, MemoryError):
        return frozenset()
    packages: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            packages.update(alias.name.partition(".")[0] for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            packages.add(node.module.partition(".")[0])
    return frozenset(packages)

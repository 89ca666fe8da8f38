"""Why a command could not be started, told so that the user knows what to type next."""

from __future__ import annotations

import errno
import os
import shlex
import shutil
from typing import TYPE_CHECKING

from holdfast.schema.errors import CommandNotRunnable
from holdfast.schema.shell_text import shell_joined, shell_quoted
from holdfast.storage.safe_files import open_regular

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path


def not_runnable(argv: Sequence[str], cwd: Path, env: Mapping[str, str], error: OSError) -> CommandNotRunnable:
    """The error to raise when the system refused to start the command."""
    # os.path throughout: where a folder may not be entered, pathlib raises and os.path says no.
    if not os.path.isdir(cwd) or not os.access(cwd, os.X_OK):  # noqa: PTH112
        there = os.path.isdir(cwd)  # noqa: PTH112
        return CommandNotRunnable(
            f"The command cannot start in {cwd}: {'it may not be entered' if there else 'there is no such folder'}.",
            next_step="start Holdfast in a folder that exists and that you may enter.",
        )
    path = _path_of(argv[0], cwd, env)
    if path is None and isinstance(error, PermissionError) and os.sep in argv[0]:
        return CommandNotRunnable(
            f"`{argv[0]}` cannot be reached: a folder on the way to it may not be entered.",
            next_step="check who may enter its folders (ls -ld), or name another program.",
            look_at=str(cwd / argv[0]),
        )
    if path is None:
        return _not_found(argv, cwd)
    if os.path.isdir(path):  # noqa: PTH112
        return _folder(argv[0])
    return _refused(argv, path, error)


def _refused(argv: Sequence[str], path: Path, error: OSError) -> CommandNotRunnable:
    program = argv[0]
    with_interpreter = f"name the interpreter: {_suggest(*_interpreter(path), *argv)}"
    if not os.access(path, os.X_OK):
        return CommandNotRunnable(
            f"`{program}` is not marked as executable.",
            next_step=f"{with_interpreter} (or chmod +x {shell_quoted(program)})",
        )
    if isinstance(error, FileNotFoundError):
        return CommandNotRunnable(
            f"`{program}` is there, but the interpreter that its first line names is not: {_first_line(path)}",
            next_step=with_interpreter,
        )
    if error.errno == errno.ENOEXEC:
        return CommandNotRunnable(
            f"`{program}` is neither a program for this machine nor a script that names its interpreter.",
            next_step=with_interpreter,
        )
    return CommandNotRunnable(
        f"`{program}` could not be started: {os.strerror(error.errno or 0)}.",
        next_step="try the same command without Holdfast.",
        look_at=str(path),
    )


def _path_of(program: str, cwd: Path, env: Mapping[str, str]) -> Path | None:
    if os.sep in program:
        path = cwd / program
        return path if os.path.exists(path) else None  # noqa: PTH110
    for folder in os.get_exec_path(dict(env)):
        path = cwd / folder / program
        if os.path.exists(path) and not os.path.isdir(path):  # noqa: PTH110, PTH112
            return path
    return None


def _not_found(argv: Sequence[str], cwd: Path) -> CommandNotRunnable:
    program = argv[0]
    here = cwd / program
    if os.path.isdir(here):  # noqa: PTH112
        return _folder(program)
    if os.path.exists(here):  # noqa: PTH110
        return CommandNotRunnable(
            f"`{program}` is a file in this folder, but a command is looked for on the PATH only.",
            next_step=f"name the interpreter: {_suggest(*_interpreter(here), *argv)}",
        )
    if " " in program:
        return CommandNotRunnable(
            f"There is no program of the name `{program}`: the whole command was given as one word.",
            next_step=f"leave out the quotes: {_suggest(*_words_in(program))}",
        )
    reason = "no such file" if os.sep in program else "it is not on the PATH"
    similar = program == "python" and shutil.which("python3")
    return CommandNotRunnable(
        f"`{program}` was not found: {reason}.",
        next_step=_suggest("python3", *argv[1:]) if similar else "check the spelling, or give the full path.",
    )


def _folder(program: str) -> CommandNotRunnable:
    return CommandNotRunnable(
        f"`{program}` is a folder, not a program.",
        next_step=f"name the script in it, e.g. {_suggest('python', os.path.join(program, 'train.py'))}",  # noqa: PTH118 - as typed
    )


def _interpreter(path: Path) -> list[str]:
    return ["bash"] if path.suffix == ".sh" else ["python"]


def _first_line(path: Path) -> str:
    try:
        with open_regular(path) as file:
            return file.readline(200).decode("utf-8", "replace").strip()
    except OSError:
        return "(not readable)"


def _words_in(command: str) -> list[str]:
    try:
        return shlex.split(command)
    except ValueError:  # a quote that is not closed
        return command.split()


def _suggest(*words: object) -> str:
    return "holdfast run -- " + shell_joined(words)

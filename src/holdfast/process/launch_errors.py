"""Errors for a command that could not be started, with what to type next."""

from __future__ import annotations

import errno
import os
import shlex
import shutil
from typing import TYPE_CHECKING

from holdfast.schema.errors import CommandNotRunnable
from holdfast.schema.shell_text import shell_join, shell_quote
from holdfast.storage.safe_files import open_regular

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path


def make_launch_error(argv: Sequence[str], cwd: Path, env: Mapping[str, str], error: OSError) -> CommandNotRunnable:
    """Return the error to raise when the system refused to start the command."""
    # os.path throughout: for a folder without permission to enter, pathlib raises and os.path returns False.
    if not os.path.isdir(cwd) or not os.access(cwd, os.X_OK):  # noqa: PTH112
        exists = os.path.isdir(cwd)  # noqa: PTH112
        return CommandNotRunnable(
            f"The command cannot start in {cwd}: {'permission denied' if exists else 'there is no such folder'}.",
            next_step="start Holdfast in a folder that exists and that you have permission to enter.",
        )
    path = _find_path(argv[0], cwd, env)
    if path is None and isinstance(error, PermissionError) and os.sep in argv[0]:
        return CommandNotRunnable(
            f"`{argv[0]}` cannot be reached: permission denied for one of its parent folders.",
            next_step="check the permissions of its parent folders (ls -ld), or specify another program.",
            look_at=str(cwd / argv[0]),
        )
    if path is None:
        return _make_not_found_error(argv, cwd)
    if os.path.isdir(path):  # noqa: PTH112
        return _make_folder_error(argv[0])
    return _make_refused_error(argv, path, error)


def _make_refused_error(argv: Sequence[str], path: Path, error: OSError) -> CommandNotRunnable:
    program = argv[0]
    with_interpreter = f"specify the interpreter: {_suggest(*_guess_interpreter(path), *argv)}"
    if not os.access(path, os.X_OK):
        return CommandNotRunnable(
            f"`{program}` is not marked as executable.",
            next_step=f"{with_interpreter} (or chmod +x {shell_quote(program)})",
        )
    if isinstance(error, FileNotFoundError):
        return CommandNotRunnable(
            f"`{program}` exists, but the interpreter that its first line names does not: {_read_first_line(path)}",
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


def _find_path(program: str, cwd: Path, env: Mapping[str, str]) -> Path | None:
    if os.sep in program:
        path = cwd / program
        return path if os.path.exists(path) else None  # noqa: PTH110
    for folder in os.get_exec_path(dict(env)):
        path = cwd / folder / program
        if os.path.exists(path) and not os.path.isdir(path):  # noqa: PTH110, PTH112
            return path
    return None


def _make_not_found_error(argv: Sequence[str], cwd: Path) -> CommandNotRunnable:
    program = argv[0]
    here = cwd / program
    if os.path.isdir(here):  # noqa: PTH112
        return _make_folder_error(program)
    if os.path.exists(here):  # noqa: PTH110
        return CommandNotRunnable(
            f"`{program}` is a file in this folder, but commands are only searched for on the PATH.",
            next_step=f"specify the interpreter: {_suggest(*_guess_interpreter(here), *argv)}",
        )
    if " " in program:
        return CommandNotRunnable(
            f"There is no program named `{program}`: the whole command was given as one word.",
            next_step=f"remove the quotes: {_suggest(*_split_words(program))}",
        )
    reason = "no such file" if os.sep in program else "it is not on the PATH"
    has_python3 = program == "python" and shutil.which("python3")
    return CommandNotRunnable(
        f"`{program}` was not found: {reason}.",
        next_step=_suggest("python3", *argv[1:]) if has_python3 else "check the spelling, or give the full path.",
    )


def _make_folder_error(program: str) -> CommandNotRunnable:
    return CommandNotRunnable(
        f"`{program}` is a folder, not a program.",
        next_step=f"specify the script in it, e.g. {_suggest('python', os.path.join(program, 'train.py'))}",  # noqa: PTH118 - as typed
    )


def _guess_interpreter(path: Path) -> list[str]:
    return ["bash"] if path.suffix == ".sh" else ["python"]


def _read_first_line(path: Path) -> str:
    try:
        with open_regular(path) as file:
            return file.readline(200).decode("utf-8", "replace").strip()
    except OSError:
        return "(not readable)"


def _split_words(command: str) -> list[str]:
    try:
        return shlex.split(command)
    except ValueError:  # an unclosed quote
        return command.split()


def _suggest(*words: object) -> str:
    return "holdfast run -- " + shell_join(words)

"""The text of a plan file: read within bounds, parse with line numbers, and format mistakes with their lines."""

from __future__ import annotations

import difflib
import re
import stat
import sys
from typing import TYPE_CHECKING, Any

from holdfast.schema.errors import PlanInvalid
from holdfast.schema.shell_text import shell_quote
from holdfast.storage.plan.toml_bounds import find_excess
from holdfast.storage.plan.toml_lines import KeyPath, locate_keys
from holdfast.storage.redact import Redactor
from holdfast.storage.safe_files import FileTooLarge, read_bytes

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

if TYPE_CHECKING:
    from pathlib import Path

    from holdfast.storage.plan.mistakes import Mistake

MAX_VALUE = 1 << 20
"""Maximum size of a plan file in bytes. A plan is a page of text and is read into memory completely."""
MAX_KEPT_BYTES = 16 << 20
MAX_KEPT_VALUES = 4_000_000
CONTEXT = 100
"""Number of lines before a mistake to search for what makes a part of it a secret."""
MAX_MISTAKES = 50
"""Maximum number of mistakes reported at once."""
_AT = re.compile(r"\s*\(at line (\d+), column (\d+)\)")


def read_plan_text(path: Path) -> str:
    try:
        kind = path.stat().st_mode
        if stat.S_ISDIR(kind):
            inside = sorted(entry.name for entry in path.glob("*.toml"))[:3]
            raise PlanInvalid(
                f"{path} is a folder, not a plan.",
                next_step=f"use the file in it: {path / inside[0]}"
                if inside
                else f"create one: holdfast init --out {shell_quote(path / 'plan.toml')}",
            )
        if not stat.S_ISREG(kind):
            raise PlanInvalid(f"{path} is not a regular file.", next_step="use a plan file, for example plan.toml")
        data = read_bytes(path, MAX_VALUE)
    except FileTooLarge:
        raise PlanInvalid(
            f"{path} is larger than 1 MB, so it is not a plan.", next_step="use a plan file, for example plan.toml"
        ) from None
    except FileNotFoundError:
        here = [entry.name for entry in path.parent.glob("*.toml")] if path.parent.is_dir() else []
        near = difflib.get_close_matches(path.name, here, n=1, cutoff=0.5)
        raise PlanInvalid(
            f"There is no plan at {path}.",
            next_step=f"did you mean {path.parent / near[0]}?" if near else "create one: holdfast init DATA.yaml",
        ) from None
    except (OSError, ValueError) as error:  # a path with a zero byte in it
        raise PlanInvalid(f"The plan {path} cannot be read: {getattr(error, 'strerror', error)}.") from error
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise PlanInvalid(
            f"{path} is not UTF-8 text: invalid byte {data[error.start]:#04x} in line {line}.",
            next_step="save it as UTF-8, or use another file",
        ) from None
    return text.replace("\r\n", "\n")


def parse_plan(text: str, path: Path) -> tuple[dict[str, Any], dict[KeyPath, int]]:
    excess = find_excess(text)
    if excess is not None:
        raise PlanInvalid(f"{path}, line {excess[0]}: {excess[1]}, so it is not a plan.", next_step="fix that line")
    try:
        return tomllib.loads(text), locate_keys(text)
    except tomllib.TOMLDecodeError as error:
        raise PlanInvalid(
            _describe_syntax_error(str(error), text, path), next_step="fix that line, then try again"
        ) from None
    except (RecursionError, ValueError) as error:
        raise PlanInvalid(f"{path} cannot be read as a plan: {error}.") from None


def read_kept_plan_text(path: Path) -> str:
    """Read the copy of the plan in a run folder. Raise OSError, UnicodeDecodeError and PlanInvalid; never block.

    Its command may have as many words as a command line. Otherwise the limits of a plan file apply.
    """
    text = read_bytes(path, MAX_KEPT_BYTES).decode("utf-8")
    excess = find_excess(text, max_values=MAX_KEPT_VALUES)
    if excess is not None:
        raise PlanInvalid(
            f"The plan of this run was modified, line {excess[0]}: {excess[1]}.",
            next_step="specify the training command again: holdfast resume RUN -- COMMAND...",
            look_at=str(path),
        )
    return text


def _describe_syntax_error(message: str, text: str, path: Path) -> str:
    """Return the parser's message with the line and a hint about a common mistake."""
    place = _AT.search(message)
    text = text.rstrip()
    number = int(place[1]) if place else text.count("\n") + 1
    line = text.split("\n")[number - 1]
    column = int(place[2]) if place else len(line) + 1
    message = _AT.sub("", message).replace(" (at end of document)", "")
    hint = "" if place or "overwrite" in message else " A quote or a bracket was not closed."
    if re.match(r"\s*[\w.-]+\s*:", line):
        hint = " In TOML, write key = value with an equals sign."
    elif re.search(r"=\s*(True|False)\b", line):
        hint = " In TOML, true and false are lowercase."
    elif re.search(r"=\s*(None|null|nil)\b", line):
        hint = " TOML has no null value: delete the key."
    elif re.search(r"=\s*[A-Za-z./~]", line) and not re.search(r"=\s*(true|false|inf|nan)\b", line):
        hint = " Put strings in quotes."
    elif line.count("{") > line.count("}"):
        hint = " A table in braces must be on one line; write [table] with its keys below instead."
    shown = _redact_line(text.split("\n"), number - 1)
    mark = f"\n  {' ' * (min(column, 120) - 1)}^" if shown == line else ""
    shown = shown if len(shown) <= 120 else shown[:117] + "..."
    return f"{path}, line {number}: {message}.{hint}\n  {shown}{mark}"


def _redact_line(lines: list[str], number: int) -> str:
    """Return one of the lines without secrets. The lines before it may be what makes a part of it a secret."""
    redactor = Redactor()
    redactor.value_for_message("\n".join(lines[max(0, number - CONTEXT) : number + 1]))
    return redactor.text(redactor.value_for_message(lines[number]))


def format_mistakes(path: Path, mistakes: list[Mistake], lines: dict[KeyPath, int]) -> str:
    def line(mistake: Mistake) -> int:
        at = mistake.path
        while at and at not in lines:
            at = at[:-1]
        return lines.get(at, 1)

    ordered = sorted(dict.fromkeys(mistakes), key=line)
    more = len(mistakes) > MAX_MISTAKES
    ordered = ordered[:MAX_MISTAKES]
    count = f"{'more than ' if more else ''}{len(ordered)} mistakes" if len(ordered) > 1 else "a mistake"
    messages = [f"  line {line(mistake)}: {_format_key_path(mistake.path)} {mistake.message}" for mistake in ordered]
    return "\n".join([f"{path} has {count}:", *messages])


def _format_key_path(path: KeyPath) -> str:
    """Format a path with numbers from 1: the settings of the second stage are `stages.2.settings`."""
    return ".".join(str(part + 1) if isinstance(part, int) else part for part in path) or "the plan"

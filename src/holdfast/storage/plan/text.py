"""A plan file as text: read within bounds, parsed with its lines, and what is wrong with it told by line."""

from __future__ import annotations

import difflib
import re
import stat
import sys
from typing import TYPE_CHECKING, Any

from holdfast.schema.errors import PlanInvalid
from holdfast.schema.shell_text import shell_quoted
from holdfast.storage.plan.toml_bounds import beyond_bounds
from holdfast.storage.plan.toml_lines import KeyPath, lines_of
from holdfast.storage.redact import Redactor
from holdfast.storage.safe_files import FileTooLarge, read_bytes

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

if TYPE_CHECKING:
    from pathlib import Path

    from holdfast.storage.plan.ultralytics_settings import Mistake

MAX_VALUE = 1 << 20
"""Bytes: a plan is a page of text, and all of it is read into memory."""
MAX_KEPT_BYTES = 16 << 20
MAX_KEPT_VALUES = 4_000_000
CONTEXT = 100
"""Lines before one with a mistake that may say what is in it."""
MAX_MISTAKES = 50
"""So many are told at once."""
_AT = re.compile(r"\s*\(at line (\d+), column (\d+)\)")


def text_of(path: Path) -> str:
    try:
        kind = path.stat().st_mode
        if stat.S_ISDIR(kind):
            inside = sorted(entry.name for entry in path.glob("*.toml"))[:3]
            raise PlanInvalid(
                f"{path} is a folder, not a plan.",
                next_step=f"name the file: {path / inside[0]}"
                if inside
                else f"make one: holdfast init --out {shell_quoted(path / 'plan.toml')}",
            )
        if not stat.S_ISREG(kind):
            raise PlanInvalid(f"{path} is no ordinary file.", next_step="name a plan file, e.g. plan.toml")
        data = read_bytes(path, MAX_VALUE)
    except FileTooLarge:
        raise PlanInvalid(
            f"{path} is larger than 1 MB: that is no plan.", next_step="name a plan file, e.g. plan.toml"
        ) from None
    except FileNotFoundError:
        here = [entry.name for entry in path.parent.glob("*.toml")] if path.parent.is_dir() else []
        near = difflib.get_close_matches(path.name, here, n=1, cutoff=0.5)
        raise PlanInvalid(
            f"There is no plan at {path}.",
            next_step=f"did you mean {path.parent / near[0]}?" if near else "make one: holdfast init DATA.yaml",
        ) from None
    except (OSError, ValueError) as error:  # a path with a zero byte in it
        raise PlanInvalid(f"The plan {path} cannot be read: {getattr(error, 'strerror', error)}.") from error
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise PlanInvalid(
            f"{path} is no text: byte {data[error.start]:#04x} in line {line} is not UTF-8.",
            next_step="save it as UTF-8, or name another file",
        ) from None
    return text.replace("\r\n", "\n")


def parsed(text: str, path: Path) -> tuple[dict[str, Any], dict[KeyPath, int]]:
    beyond = beyond_bounds(text)
    if beyond is not None:
        raise PlanInvalid(f"{path}, line {beyond[0]}: {beyond[1]}: that is no plan.", next_step="mend that line")
    try:
        return tomllib.loads(text), lines_of(text)
    except tomllib.TOMLDecodeError as error:
        raise PlanInvalid(_syntax(str(error), text, path), next_step="mend that line, then try again") from None
    except (RecursionError, ValueError) as error:
        raise PlanInvalid(f"{path} cannot be read as a plan: {error}.") from None


def kept_text(path: Path) -> str:
    """The plan that a run folder keeps. Raises OSError, UnicodeDecodeError and PlanInvalid; never waits.

    Its command may have as many words as a command line can; nothing else in it is larger than in a plan file.
    """
    text = read_bytes(path, MAX_KEPT_BYTES).decode("utf-8")
    beyond = beyond_bounds(text, max_values=MAX_KEPT_VALUES)
    if beyond is not None:
        raise PlanInvalid(
            f"The plan of this run was changed, line {beyond[0]}: {beyond[1]}.",
            next_step="give the training again: holdfast resume RUN -- COMMAND...",
            look_at=str(path),
        )
    return text


def _syntax(said: str, text: str, path: Path) -> str:
    """The reader's words, with the line and what is often the matter with it."""
    place = _AT.search(said)
    text = text.rstrip()
    number = int(place[1]) if place else text.count("\n") + 1
    line = text.split("\n")[number - 1]
    column = int(place[2]) if place else len(line) + 1
    said = _AT.sub("", said).replace(" (at end of document)", "")
    hint = "" if place or "overwrite" in said else " A quote or a bracket was not closed."
    if re.match(r"\s*[\w.-]+\s*:", line):
        hint = " TOML writes key = value, with an equals sign."
    elif re.search(r"=\s*(True|False)\b", line):
        hint = " TOML writes true and false in small letters."
    elif re.search(r"=\s*(None|null|nil)\b", line):
        hint = " TOML has no empty value: leave the key out."
    elif re.search(r"=\s*[A-Za-z./~]", line) and not re.search(r"=\s*(true|false|inf|nan)\b", line):
        hint = " A text stands in quotes."
    elif line.count("{") > line.count("}"):
        hint = " A table in braces stands on one line; write [table] with its keys below instead."
    shown = _without_secrets(text.split("\n"), number - 1)
    mark = f"\n  {' ' * (min(column, 120) - 1)}^" if shown == line else ""
    shown = shown if len(shown) <= 120 else shown[:117] + "..."
    return f"{path}, line {number}: {said}.{hint}\n  {shown}{mark}"


def _without_secrets(lines: list[str], number: int) -> str:
    """One of these lines, as it may be quoted: what makes a part of it a secret may stand in those before it."""
    redactor = Redactor()
    redactor.given("\n".join(lines[max(0, number - CONTEXT) : number + 1]))
    return redactor.text(redactor.given(lines[number]))


def told(path: Path, mistakes: list[Mistake], lines: dict[KeyPath, int]) -> str:
    def line(mistake: Mistake) -> int:
        at = mistake.path
        while at and at not in lines:
            at = at[:-1]
        return lines.get(at, 1)

    ordered = sorted(dict.fromkeys(mistakes), key=line)
    more = len(mistakes) > MAX_MISTAKES
    ordered = ordered[:MAX_MISTAKES]
    count = f"{'more than ' if more else ''}{len(ordered)} mistakes" if len(ordered) > 1 else "a mistake"
    said = [f"  line {line(mistake)}: {_named(mistake.path)} {mistake.message}" for mistake in ordered]
    return "\n".join([f"{path} has {count}:", *said])


def _named(path: KeyPath) -> str:
    """As people count: the second stage's settings are `stages.2.settings`."""
    return ".".join(str(part + 1) if isinstance(part, int) else part for part in path) or "the plan"

"""The plan beside the journal: written without secrets, and read again for a resume."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

import msgspec

from holdfast.probe.holdfast_probe.redact import MASK
from holdfast.schema.errors import CommandNotRunnable, FolderNotWritable, UnknownRun
from holdfast.schema.plan import Plan, from_toml, to_toml
from holdfast.storage.folder import write_atomically
from holdfast.storage.plan.text import kept_text
from holdfast.storage.redact import redactor_for

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from holdfast.storage.folder import RunFolder

_BYTES = {0xDC00 + byte: 0x10FF00 + byte for byte in range(0x80, 0x100)}
"""A name of a file may hold bytes that are no UTF-8, and TOML may not: each is written as a character of a private plane."""
_CHARACTERS = {written: byte for byte, written in _BYTES.items()}


def write_plan(run: RunFolder, plan: Plan) -> None:
    try:
        write_atomically(run.plan, to_toml(redactor_for(plan).plan(plan)).translate(_BYTES))
    except OSError as error:
        raise FolderNotWritable(
            f"The run folder {run.path} cannot be written: {error.strerror}.",
            next_step="make room on the disk, or choose another folder with --dir DIR",
        ) from error


def read_plan(
    run: RunFolder, command: Sequence[str], *, attempts: int | None = None, hours: float | None = None, **changes: Any
) -> Plan:
    """The plan of a run, with what is given anew; what was not recorded because it was a secret must be."""
    try:
        plan = _with_bytes(from_toml(kept_text(run.plan)))
    except (OSError, UnicodeDecodeError) as error:
        raise UnknownRun(f"The plan of {run.path} cannot be read: {error}.", look_at=str(run.plan)) from error
    given = {name: value for name, value in changes.items() if value is not None}
    if command:
        given["command"] = list(command)
    budget = {name: value for name, value in (("attempts", attempts), ("hours", hours)) if value is not None}
    if budget:
        given["budget"] = msgspec.structs.replace(plan.budget, **budget)
    plan = msgspec.structs.replace(plan, environment=_environment(run, plan), **given)
    for name, words in (
        ("command", [*plan.command, *(word for stage in plan.stages for word in stage.command)]),
        ("--on-event", [plan.on_event or ""]),
        ("--resume-with", [plan.resume_with or ""]),
        ("--checkpoint", [plan.checkpoint or ""]),
    ):
        if any(MASK in word for word in words):
            how = ("PLAN.toml" if plan.stages else "-- COMMAND...") if name == "command" else f"{name} ..."
            raise CommandNotRunnable(
                f"The {name} of this run had a secret in it, which was not recorded.",
                next_step=f"give it again: holdfast resume {run.shell_reference} {how}",
            )
    settings = [plan.settings, plan.overrides, *(stage.settings for stage in plan.stages)]
    if any(MASK in text for text in _strings(settings)):
        raise CommandNotRunnable(
            "The settings of this run had a secret in them, which was not recorded.",
            next_step=f"give the plan again: holdfast resume {run.shell_reference} PLAN.toml",
        )
    return plan


def _strings(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, (dict, list)):
        for item in value.values() if isinstance(value, dict) else value:
            yield from _strings(item)


def _with_bytes(plan: Plan) -> Plan:
    """The plan with the names that the system knows."""

    def restored(value: Any) -> Any:
        if isinstance(value, str):
            return value.translate(_CHARACTERS)
        if isinstance(value, dict):
            return {name: restored(item) for name, item in value.items()}
        return [restored(item) for item in value] if isinstance(value, list) else value

    return msgspec.convert(restored(msgspec.to_builtins(plan)), Plan)


def _environment(run: RunFolder, plan: Plan) -> dict[str, str]:
    """What was not recorded because it was a secret is taken from where the user has it."""
    for name, value in plan.environment.items():
        if MASK in value and name not in os.environ:
            raise CommandNotRunnable(
                f"The plan of this run sets {name}, which was not recorded because it holds a secret.",
                next_step=f"set it where you are, then: holdfast resume {run.shell_reference}",
            )
    return {name: os.environ[name] if MASK in value else value for name, value in plan.environment.items()}

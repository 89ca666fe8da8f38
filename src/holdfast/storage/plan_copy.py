"""The copy of the plan next to the journal: written without secrets, and read again for a resume."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

import msgspec

from holdfast.probe.holdfast_probe.redact import MASK
from holdfast.schema.errors import CommandNotRunnable, FolderNotWritable, UnknownRun
from holdfast.schema.plan import Plan, from_toml, to_toml
from holdfast.storage.folder import write_atomically
from holdfast.storage.plan.text import read_kept_plan_text
from holdfast.storage.redact import redactor_for

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from holdfast.storage.folder import RunFolder

_BYTES = {0xDC00 + byte: 0x10FF00 + byte for byte in range(0x80, 0x100)}
"""File names may contain bytes that are not UTF-8, but TOML may not. They are written as private-use characters."""
_CHARACTERS = {written: byte for byte, written in _BYTES.items()}


def write_plan(run: RunFolder, plan: Plan) -> None:
    try:
        write_atomically(run.plan, to_toml(redactor_for(plan).plan(plan)).translate(_BYTES))
    except OSError as error:
        raise FolderNotWritable(
            f"Cannot write to the run folder {run.path}: {error.strerror}.",
            next_step="free some disk space, or choose another folder with --dir DIR",
        ) from error


def read_plan(run: RunFolder, command: Sequence[str], change: Callable[[Plan], Plan] = lambda plan: plan) -> Plan:
    """Read the plan of a run and change it. Secrets were not recorded and must be provided again."""
    try:
        plan = _restore_bytes(from_toml(read_kept_plan_text(run.plan)))
    except (OSError, UnicodeDecodeError) as error:
        raise UnknownRun(f"The plan of {run.path} cannot be read: {error}.", look_at=str(run.plan)) from error
    fields: dict[str, Any] = {"command": list(command)} if command else {}
    plan = change(msgspec.structs.replace(plan, environment=_restore_environment(run, plan), **fields))
    for name, words in (
        ("command", [*plan.command, *(word for stage in plan.stages for word in stage.command)]),
        ("--on-event", [plan.on_event or ""]),
        ("--resume-with", [plan.resume_with or ""]),
        ("--checkpoint", [plan.checkpoint or ""]),
    ):
        if any(MASK in word for word in words):
            arguments = ("PLAN.toml" if plan.stages else "-- COMMAND...") if name == "command" else f"{name} ..."
            raise CommandNotRunnable(
                f"The {name} of this run contains a secret, which was not recorded.",
                next_step=f"specify it again: holdfast resume {run.shell_reference} {arguments}",
            )
    settings = [plan.settings, plan.overrides, *(stage.settings for stage in plan.stages)]
    if any(MASK in text for text in _strings(settings)):
        raise CommandNotRunnable(
            "The settings of this run contain a secret, which was not recorded.",
            next_step=f"specify the plan again: holdfast resume {run.shell_reference} PLAN.toml",
        )
    return plan


def _strings(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, (dict, list)):
        for item in value.values() if isinstance(value, dict) else value:
            yield from _strings(item)


def _restore_bytes(plan: Plan) -> Plan:
    """Return the plan with the original bytes of file names."""

    def restore(value: Any) -> Any:
        if isinstance(value, str):
            return value.translate(_CHARACTERS)
        if isinstance(value, dict):
            return {name: restore(item) for name, item in value.items()}
        return [restore(item) for item in value] if isinstance(value, list) else value

    return msgspec.convert(restore(msgspec.to_builtins(plan)), Plan)


def _restore_environment(run: RunFolder, plan: Plan) -> dict[str, str]:
    """Return the environment of the plan. Secrets were not recorded and are taken from the current environment."""
    for name, value in plan.environment.items():
        if MASK in value and name not in os.environ:
            raise CommandNotRunnable(
                f"The plan of this run sets {name}, which was not recorded because it contains a secret.",
                next_step=f"set it in your shell, then: holdfast resume {run.shell_reference}",
            )
    return {name: os.environ[name] if MASK in value else value for name, value in plan.environment.items()}

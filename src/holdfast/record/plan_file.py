"""The plan beside the journal: written without secrets, and read again for a resume."""

from __future__ import annotations

import os
import shlex
from typing import TYPE_CHECKING, Any

import msgspec

from holdfast.record.folder import write_atomically
from holdfast.record.masking import MASK, UNREADABLE, mask_command, names_a_secret
from holdfast.record.plan_text import kept_text
from holdfast.words.errors import CommandNotRunnable, FolderNotWritable, UnknownRun
from holdfast.words.plan import Plan, from_toml, to_toml

if TYPE_CHECKING:
    from collections.abc import Sequence

    from holdfast.record.folder import RunFolder


def write_plan(run: RunFolder, plan: Plan) -> None:
    try:
        write_atomically(run.plan, to_toml(without_secrets(plan)))
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
        plan = from_toml(kept_text(run.plan))
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
    ):
        if any(MASK in word or UNREADABLE in word for word in words):
            how = ("PLAN.toml" if plan.stages else "-- COMMAND...") if name == "command" else f"{name} ..."
            raise CommandNotRunnable(
                f"The {name} of this run had something in it that was not recorded (a secret, or bytes that are no text).",
                next_step=f"give it again: holdfast resume {run.reference} {how}",
            )
    return plan


def without_secrets(plan: Plan) -> Plan:
    """The plan as it may be written down."""
    split = {"on_event": plan.on_event, "resume_with": plan.resume_with}
    masked = {name: shlex.join(mask_command(shlex.split(text))) for name, text in split.items() if text is not None}
    stages = [msgspec.structs.replace(stage, command=mask_command(stage.command)) for stage in plan.stages]
    return msgspec.structs.replace(
        plan,
        command=mask_command(plan.command),
        stages=stages,
        environment={name: MASK if names_a_secret(name) else value for name, value in plan.environment.items()},
        **masked,
    )


def _environment(run: RunFolder, plan: Plan) -> dict[str, str]:
    """What was not recorded because it was a secret is taken from where the user has it."""
    for name, value in plan.environment.items():
        if value == MASK and name not in os.environ:
            raise CommandNotRunnable(
                f"The plan of this run sets {name}, which was not recorded because it is a secret.",
                next_step=f"set it where you are, then: holdfast resume {run.reference}",
            )
    return {name: os.environ[name] if value == MASK else value for name, value in plan.environment.items()}

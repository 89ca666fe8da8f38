"""What the user asked for: a frozen plan, saved beside the journal."""

from __future__ import annotations

import json
from typing import Any, Literal

import msgspec

from holdfast.words.errors import PlanInvalid


class HangSettings(msgspec.Struct, frozen=True, kw_only=True):
    """When silence counts as a hang. All of it must hold, and the stacks must stand still as well."""

    floor_s: float = 300.0
    """Never before this many seconds without a step, a fetch or output."""
    start_floor_s: float = 900.0
    """Before the first step: building a cache or compiling takes long and is quiet."""
    factor: float = 10.0
    """Nor before this many times the longest pause that this run has already survived."""
    confirm_s: float = 30.0
    """Seconds between the two stack dumps that must be equal."""


class Plan(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    command: list[str]
    cwd: str
    max_attempts: int = 3
    on_finding: Literal["act", "warn"] = "act"
    observe_only: bool = False
    """Watch and record: nothing is stopped, restarted or changed."""
    on_event: str | None = None
    """A command of the user's, split like a shell would but run without one; gets JSON on its stdin."""
    checkpoint: str | None = None
    """A glob for the checkpoints that this command writes."""
    resume_with: str | None = None
    """Arguments that make the command go on from {checkpoint}."""
    grace_s: float = 10.0
    """Between asking a process to end (TERM) and ending it (KILL)."""
    backoff_s: float = 2.0
    """Wait before the second attempt; doubled for each further one, up to a minute."""
    max_loss_s: float | None = None
    """Seconds of work that a death may cost; None leaves it to what snapshots cost and how often this run dies."""
    sample_every_s: float = 1.0
    keep_awake: bool = True
    rules: dict[str, dict[str, float | str]] = {}
    """Rule -> limit -> value; its "severity" caps what the rule may say, "off" among them."""
    hang: HangSettings = HangSettings()

    def __post_init__(self) -> None:
        if not self.command:
            raise PlanInvalid("There is no command to run.", next_step="holdfast run -- python train.py")
        if self.max_attempts < 1:
            raise PlanInvalid(
                f"--max-attempts {self.max_attempts} leaves no attempt at all.", next_step="give 1 or more"
            )
        if self.max_loss_s is not None and not self.max_loss_s >= 0:
            raise PlanInvalid(
                f"--max-loss {self.max_loss_s:g} makes no sense.",
                next_step="give seconds, 0 for a snapshot at every batch",
            )
        if self.resume_with and "{" in self.resume_with and "{checkpoint}" not in self.resume_with:
            raise PlanInvalid(
                f"--resume-with {self.resume_with!r} has a placeholder that is not known.",
                next_step="""the checkpoint's path is written {checkpoint}, for instance --resume-with '--resume {checkpoint}'""",
            )
        if self.resume_with and not self.checkpoint:
            raise PlanInvalid(
                "--resume-with says how to go on, but not from which file.",
                next_step="""add --checkpoint "GLOB", for instance --checkpoint 'runs/*.pt'""",
            )


def to_toml(plan: Plan) -> str:
    """The plan as TOML: flat values, then one table for each part of it."""
    values: dict[str, Any] = msgspec.to_builtins(plan)
    flat = [f"{key} = {_toml(value)}" for key, value in values.items() if not isinstance(value, dict)]
    tables = [
        line
        for key, table in values.items()
        if isinstance(table, dict)
        for line in ("", f"[{key}]", *(f"{name} = {_toml(value)}" for name, value in table.items()))
    ]
    return "\n".join([*flat, *tables, ""])


def from_toml(text: str) -> Plan:
    try:
        return msgspec.toml.decode(text, type=Plan)
    except msgspec.MsgspecError as error:
        raise PlanInvalid(f"The plan cannot be read: {error}") from error


def _toml(value: Any) -> str:
    if isinstance(value, dict):
        return "{ " + ", ".join(f"{name} = {_toml(item)}" for name, item in value.items()) + " }"
    if isinstance(value, list):
        return "[" + ", ".join(_toml(item) for item in value) + "]"
    # JSON's strings, numbers and booleans are TOML's too, but for the one control character that JSON leaves as it is.
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")

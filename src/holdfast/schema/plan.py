"""What the user asked for: a frozen plan, saved next to the journal.

A command line is a plan with only a command. A plan file may name a framework (`trainer`) and let Holdfast build the
command, divide the run into stages, set a budget, and state which settings may be changed if a change is needed.

`plan_keys.py` describes each key; the docstrings here add only what a plan file cannot express.
"""

from __future__ import annotations

import json
import shlex
from typing import Any, Literal

import msgspec

from holdfast import frameworks
from holdfast.probe.holdfast_probe.redact import Redactor
from holdfast.schema.errors import PlanInvalid

MAX_SECONDS = 1e8
"""Three years. A longer time is a mistake, and no system clock accepts 1e300."""
MAX_HOURS = 1e6
MAX_ATTEMPTS = 10_000
MAX_MEMORY_BYTES = 1 << 60


def check_number(name: str, value: float, most: float = MAX_SECONDS) -> None:
    if not 0 <= value <= most:  # also true for NaN
        raise PlanInvalid(f"{name} {value:g} is out of range.", next_step=f"use a number between 0 and {most:g}")


class HangSettings(msgspec.Struct, frozen=True, kw_only=True):
    """When a lack of progress counts as a hang. All conditions must be met, and two stack dumps must be equal."""

    floor_s: float = 300.0
    start_floor_s: float = 900.0
    factor: float = 10.0
    confirm_s: float = 30.0

    def __post_init__(self) -> None:
        check_number("--hang-after", self.floor_s)
        for name, value in (
            ("start_floor_s", self.start_floor_s),
            ("factor", self.factor),
            ("confirm_s", self.confirm_s),
        ):
            check_number(f"[hang] {name}", value)


class Validation(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Validation options that frameworks do not offer as settings."""

    every: int = 1
    batch: int | None = None
    max_det: int | None = None
    best_by: Literal["fitness", "mAP50", "F1", "F2"] = "fitness"
    on_cpu: Literal["auto", "always", "never"] = "auto"


class ClearCache(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """How often to empty the device's memory cache; 0 means never."""

    epochs: int = 0
    steps: int = 0


class Gate(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What a stage must reach before the next one starts."""

    metric: str = "mAP50-95"
    at_least: float | None = None
    must_improve: bool = False


class Stage(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A part of a run with its own settings."""

    name: str = ""
    start: Literal["scratch", "best", "last"] | None = msgspec.field(name="from", default=None)
    settings: dict[str, Any] = {}
    command: list[str] = []
    gate: Gate = Gate()
    skip_if_oom: bool = False


class Budget(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    attempts: int = 10
    hours: float | None = None
    memory: int | None = None
    """Memory limit for the training in bytes; None is the memory of the machine."""

    def __post_init__(self) -> None:
        if self.attempts < 1:
            raise PlanInvalid(f"--max-attempts {self.attempts} allows no attempt.", next_step="use 1 or more")
        if self.attempts > MAX_ATTEMPTS:
            raise PlanInvalid(
                f"--max-attempts is larger than {MAX_ATTEMPTS:,}, the maximum that a journal supports.",
                next_step=f"use a number between 1 and {MAX_ATTEMPTS:,}",
            )
        if self.hours is not None:
            check_number("--hours", self.hours, MAX_HOURS)
        if self.memory is not None and not 0 < self.memory <= MAX_MEMORY_BYTES:
            raise PlanInvalid(
                "[budget] memory is zero, negative, or more than any machine has.",
                next_step='write, for example, memory = "12 GB"',
            )


class Policy(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What Holdfast may change if a change is needed."""

    devices: list[str] = []
    may_change: list[str] | None = None
    never_change: list[str] = []
    planned_restarts: bool = True


class Plan(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    command: list[str] = []
    cwd: str
    name: str | None = None
    trainer: str = frameworks.COMMAND
    python: str | None = None
    settings: dict[str, Any] = {}
    flags: dict[str, str] = {}
    validation: Validation = Validation()
    clear_cache: ClearCache = ClearCache()
    assigner: Literal["device", "cpu"] = "device"
    stages: list[Stage] = []
    budget: Budget = Budget()
    policy: Policy = Policy()
    overrides: dict[str, Any] = {}
    """Framework settings changed by remedies. They override those of the command."""
    environment: dict[str, str] = {}
    on_finding: Literal["act", "warn"] = "act"
    observe_only: bool = False
    on_event: str | None = None
    """A command of the user, split as a shell does but run without one; it receives JSON on stdin."""
    checkpoint: str | None = None
    resume_with: str | None = None
    grace_s: float = 10.0
    backoff_s: float = 2.0
    max_lost_work_s: float | None = None
    """Seconds of work that a crash may cost; None: derived from the cost of snapshots and the frequency of crashes."""
    sample_every_s: float = 1.0
    keep_awake: bool = True
    rules: dict[str, dict[str, float | str]] = {}
    """Rule -> limit -> value. "severity" is the highest severity that the rule may report, or "off"."""
    hang: HangSettings = HangSettings()

    def __post_init__(self) -> None:
        if self.trainer not in (known := (frameworks.COMMAND, *frameworks.names())):
            raise PlanInvalid(f"trainer {self.trainer!r} is unknown.", next_step=f"use one of {', '.join(known)}")
        if (
            self.trainer == frameworks.COMMAND
            and not self.command
            and not all(stage.command for stage in self.stages or [Stage()])
        ):
            raise PlanInvalid("There is no command to run.", next_step="holdfast run -- python train.py")
        for name, seconds in (
            ("--backoff", self.backoff_s),
            ("grace_s", self.grace_s),
            ("sample_every_s", self.sample_every_s),
            ("--max-lost-work", 0.0 if self.max_lost_work_s is None else self.max_lost_work_s),
        ):
            check_number(name, seconds)
        self._check_resume_with()

    def _check_resume_with(self) -> None:
        try:
            shlex.split(self.resume_with or "")
        except ValueError as error:
            raise PlanInvalid(
                f"--resume-with cannot be split into arguments: {error}.",
                next_step="close the quote, or omit it",
            ) from error
        if self.resume_with and "{" in self.resume_with and "{checkpoint}" not in self.resume_with:
            raise PlanInvalid(
                f"--resume-with {Redactor().value('', self.resume_with)!r} has an unknown placeholder.",
                next_step="""write {checkpoint} for the path of the checkpoint, for example --resume-with '--resume {checkpoint}'""",
            )
        if self.resume_with and not self.checkpoint:
            raise PlanInvalid(
                "--resume-with needs --checkpoint: Holdfast does not know which file to resume from.",
                next_step="""add --checkpoint "GLOB", for example --checkpoint 'runs/*.pt'""",
            )


def to_toml(plan: Plan) -> str:
    """Return the plan as TOML: plain values first, then the tables."""
    values: dict[str, Any] = msgspec.to_builtins(plan)
    tables = {key: value for key, value in values.items() if isinstance(value, dict)}
    arrays = {key: value for key, value in values.items() if _is_table_list(value)}
    lines = [
        f"{key} = {_format_toml(value)}" for key, value in values.items() if key not in tables and key not in arrays
    ]
    titled = [(f"[{key}]", table) for key, table in tables.items()]
    titled += [(f"[[{key}]]", table) for key, array in arrays.items() for table in array]
    for title, table in titled:
        lines += ["", title, *(f"{_format_key(name)} = {_format_toml(value)}" for name, value in table.items())]
    return "\n".join([*lines, ""])


def from_toml(text: str) -> Plan:
    try:
        return msgspec.toml.decode(text, type=Plan)
    except (ValueError, RecursionError) as error:  # msgspec errors are ValueErrors; so is an integer of 5,000 digits
        raise PlanInvalid(f"The plan cannot be read: {error}") from error


def _is_table_list(value: Any) -> bool:
    return isinstance(value, list) and bool(value) and all(isinstance(item, dict) for item in value)


def _format_key(name: str) -> str:
    return name if name.replace("_", "").replace("-", "").isalnum() and name.isascii() else _format_toml(name)


def _format_toml(value: Any) -> str:
    if isinstance(value, dict):
        return "{ " + ", ".join(f"{_format_key(name)} = {_format_toml(item)}" for name, item in value.items()) + " }"
    if isinstance(value, list):
        return "[" + ", ".join(_format_toml(item) for item in value) + "]"
    # JSON strings, numbers and booleans are valid TOML, except for the one control character that JSON does not escape.
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")

"""What the user asked for: a frozen plan, saved beside the journal.

A command line is a plan with a command and nothing else. A plan file may leave the command to Holdfast (`trainer =
"ultralytics"`), cut the run into stages, set a budget, and say what may be changed when something must be.
"""

from __future__ import annotations

import json
import shlex
from typing import Any, Literal

import msgspec

from holdfast.probe.holdfast_probe.redact import Redactor
from holdfast.schema.errors import PlanInvalid

MAX_SECONDS = 1e8
"""Three years. What is longer was not meant, and no clock of the system takes 1e300."""
MAX_HOURS = 1e6
MAX_ATTEMPTS = 10_000
MAX_MEMORY_BYTES = 1 << 60


def check_number(name: str, value: float, most: float = MAX_SECONDS) -> None:
    if not 0 <= value <= most:  # nor is NaN
        raise PlanInvalid(f"{name} {value:g} makes no sense.", next_step=f"give a number between 0 and {most:g}")


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

    def __post_init__(self) -> None:
        check_number("--hang-after", self.floor_s)
        for name, value in (
            ("start_floor_s", self.start_floor_s),
            ("factor", self.factor),
            ("confirm_s", self.confirm_s),
        ):
            check_number(f"[hang] {name}", value)


class Validation(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """How Ultralytics validates, where that is not a setting of its own."""

    every: int = 1
    """Epochs from one validation to the next; the last epoch is always validated."""
    batch: int | None = None
    """Images in a batch; as many as Ultralytics takes where it is None."""
    max_det: int | None = None
    """Boxes kept for an image while the training validates."""
    best_by: Literal["fitness", "mAP50", "F1", "F2"] = "fitness"
    """What best.pt is the best by."""
    on_cpu: Literal["auto", "always", "never"] = "auto"
    """Whether best.pt is validated once more on the CPU at the end; `auto`: where the device is suspect."""


class ClearCache(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """How often the device's cache of free memory is given back; 0 is never."""

    epochs: int = 0
    steps: int = 0


class Gate(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What a stage must have reached before the next one begins."""

    metric: str = "mAP50-95"
    at_least: float | None = None
    """None: anything above zero."""
    must_improve: bool = False
    """It must also be better than what the stage before reached."""


class Stage(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A part of a run with its own settings."""

    name: str = ""
    start: Literal["scratch", "best", "last"] | None = msgspec.field(name="from", default=None)
    """Whose weights it begins with: those of the stage before. None: `best` for all but the first."""
    settings: dict[str, Any] = {}
    """Over those of the plan."""
    command: list[str] = []
    """For trainer `command`: instead of the plan's."""
    gate: Gate = Gate()
    skip_if_oom: bool = False
    """Measured first, and left out where memory does not allow it."""


class Budget(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    attempts: int = 10
    """How often the training may be started in all, each stage for itself. Restarts that were planned cost none."""
    hours: float | None = None
    """For the whole run: then it is stopped with a snapshot, and can be gone on with."""
    memory: int | None = None
    """Bytes that the training may hold; what the machine has where it is None."""

    def __post_init__(self) -> None:
        if self.attempts < 1:
            raise PlanInvalid(f"--max-attempts {self.attempts} leaves no attempt at all.", next_step="give 1 or more")
        if self.attempts > MAX_ATTEMPTS:
            raise PlanInvalid(
                f"--max-attempts is larger than {MAX_ATTEMPTS:,}: no record can hold that many.",
                next_step=f"give a number between 1 and {MAX_ATTEMPTS:,}",
            )
        if self.hours is not None:
            check_number("--hours", self.hours, MAX_HOURS)
        if self.memory is not None and not 0 < self.memory <= MAX_MEMORY_BYTES:
            raise PlanInvalid(
                "[budget] memory is more than any machine has, or nothing at all.",
                next_step='write e.g. memory = "12 GB"',
            )


class Policy(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What may be changed when something must be."""

    devices: list[str] = []
    """In the order in which they are tried. Empty: the one that the settings name, then the CPU."""
    may_change: list[str] | None = None
    """Settings that a remedy may change; None: all that are not in `never_change`."""
    never_change: list[str] = []
    planned_restarts: bool = True
    """A fresh process before memory is used up."""


class Plan(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    command: list[str] = []
    cwd: str
    name: str | None = None
    trainer: Literal["command", "ultralytics"] = "command"
    python: str | None = None
    """The interpreter that has Ultralytics; the one beside `yolo` on the path where it is None."""
    settings: dict[str, Any] = {}
    """Ultralytics' own, for all stages."""
    flags: dict[str, str] = {}
    """For trainer `command`: what this command calls a setting that a remedy may change, e.g. batch = "--bs"."""
    validation: Validation = Validation()
    clear_cache: ClearCache = ClearCache()
    assigner: Literal["device", "cpu"] = "device"
    """Where Ultralytics matches boxes with predictions."""
    stages: list[Stage] = []
    budget: Budget = Budget()
    policy: Policy = Policy()
    overrides: dict[str, Any] = {}
    """Settings of the framework that are set from outside, over those of the command: what remedies changed."""
    environment: dict[str, str] = {}
    """Variables for the training, over those that there are."""
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
    max_lost_work_s: float | None = None
    """Seconds of work that a death may cost; None leaves it to what snapshots cost and how often this run dies."""
    sample_every_s: float = 1.0
    keep_awake: bool = True
    rules: dict[str, dict[str, float | str]] = {}
    """Rule -> limit -> value; its "severity" caps what the rule may say, "off" among them."""
    hang: HangSettings = HangSettings()

    def __post_init__(self) -> None:
        if (
            self.trainer == "command"
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
                f"--resume-with cannot be split into words: {error}.",
                next_step="close the quote, or leave it out",
            ) from error
        if self.resume_with and "{" in self.resume_with and "{checkpoint}" not in self.resume_with:
            raise PlanInvalid(
                f"--resume-with {Redactor().value('', self.resume_with)!r} has a placeholder that is not known.",
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
    tables = {key: value for key, value in values.items() if isinstance(value, dict)}
    arrays = {key: value for key, value in values.items() if _is_tables(value)}
    flat = [f"{key} = {_toml(value)}" for key, value in values.items() if key not in tables and key not in arrays]
    for key, table in tables.items():
        flat += ["", f"[{key}]", *(f"{_key(name)} = {_toml(value)}" for name, value in table.items())]
    for key, array in arrays.items():
        for table in array:
            flat += ["", f"[[{key}]]", *(f"{_key(name)} = {_toml(value)}" for name, value in table.items())]
    return "\n".join([*flat, ""])


def from_toml(text: str) -> Plan:
    try:
        return msgspec.toml.decode(text, type=Plan)
    except (ValueError, RecursionError) as error:  # msgspec's own are ValueErrors; so is an integer of 5,000 digits
        raise PlanInvalid(f"The plan cannot be read: {error}") from error


def _is_tables(value: Any) -> bool:
    return isinstance(value, list) and bool(value) and all(isinstance(item, dict) for item in value)


def _key(name: str) -> str:
    return name if name.replace("_", "").replace("-", "").isalnum() and name.isascii() else _toml(name)


def _toml(value: Any) -> str:
    if isinstance(value, dict):
        return "{ " + ", ".join(f"{_key(name)} = {_toml(item)}" for name, item in value.items()) + " }"
    if isinstance(value, list):
        return "[" + ", ".join(_toml(item) for item in value) + "]"
    # JSON's strings, numbers and booleans are TOML's too, but for the one control character that JSON leaves as it is.
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")

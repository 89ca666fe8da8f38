"""Reads a plan file, or reports all of its mistakes at once: each with its line, its key and what to write instead."""

from __future__ import annotations

import difflib
import itertools
import os
import shlex
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import msgspec

from holdfast import frameworks
from holdfast.schema.errors import PlanInvalid
from holdfast.schema.plan import Plan
from holdfast.schema.plan_keys import BY_NAME, GATE, METRICS, STAGE, TOP
from holdfast.schema.values import Value
from holdfast.storage.folder import FOLDER_NAME, to_folder_name
from holdfast.storage.plan.mistakes import HOLDFAST_KEYS, Mistake, describe_place
from holdfast.storage.plan.text import MAX_MISTAKES, format_mistakes, parse_plan, read_plan_text
from holdfast.storage.plan.values import check_device, check_value, format_value, parse_bytes
from holdfast.storage.redact import Redactor
from holdfast.storage.safe_files import expand_user

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator, Mapping
    from pathlib import Path

    from holdfast.frameworks.base import Framework
    from holdfast.schema.plan_keys import Table
    from holdfast.storage.plan.toml_lines import KeyPath

SEVERITIES = ("off", "note", "warn", "fatal")
_INTERNAL = {"overrides": "is reserved for changes made by remedies: use [settings]"}
_ALIASES = {"stage": "stages", "start": "from", "time": "hours"}
SET_BY_COMMAND = ("model", "task", "mode")
"""Holdfast cannot override these settings of a command."""
_OTHER_CHANGEABLE = (
    *("validation.every", "validation.batch", "validation.max_det", "validation.on_cpu"),
    *("clear_cache.epochs", "clear_cache.steps", "assigner", "accumulate"),
)
"""What remedies may change in addition to settings of a framework."""


def _get_physical_memory() -> int:
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


@dataclass(frozen=True)
class ReadContext:
    """What is needed to check a plan in addition to the file."""

    memory: Callable[[], int] = _get_physical_memory
    """The total bytes to which a percentage such as "80%" refers."""
    rules: Mapping[str, Collection[str]] | None = None
    """Rule -> its limits. If None, the names of rules and limits are not checked."""


def read(path: Path, context: ReadContext | None = None) -> Plan:
    """Read the plan in this file. Raise PlanInvalid with all of its mistakes."""
    text = read_plan_text(path)
    values, lines = parse_plan(text, path)
    reader = _Reader(path, values, context or ReadContext())
    mistakes = reader.find_mistakes()
    if mistakes:
        raise PlanInvalid(
            format_mistakes(path, mistakes, lines), next_step="fix the file; docs/plans.md explains every key"
        )
    return reader.make_plan()


class _Reader:
    """Checks the values of one file and converts them to a plan."""

    def __init__(self, path: Path, values: dict[str, Any], context: ReadContext) -> None:
        self._path = path.absolute()
        self._context = context
        self._values = dict(values)
        self._alias: dict[str, str] = {}
        if "stage" in values and "stages" not in values:
            self._values["stages"] = self._values.pop("stage")
            self._alias["stages"] = "stage"
        self._built: dict[str, Any] = {}

    def make_plan(self) -> Plan:
        try:
            return msgspec.convert(self._built, Plan)
        except msgspec.ValidationError as error:
            raise PlanInvalid(f"{self._path} cannot be used: {Redactor().text(str(error))}.") from None

    def find_mistakes(self) -> list[Mistake]:
        mistakes = [
            self._with_written_name(mistake) for mistake in itertools.islice(self._check_all(), MAX_MISTAKES + 1)
        ]
        if not mistakes:
            self._build()
        return mistakes

    def _with_written_name(self, mistake: Mistake) -> Mistake:
        """Replace the key in the mistake by the alias that the user wrote, if any."""
        first, *rest = mistake.path or ("",)
        return mistake._replace(path=(self._alias[first], *rest)) if first in self._alias else mistake

    def _check_all(self) -> Iterator[Mistake]:
        values = self._values
        name = values.get("name")
        if isinstance(name, str) and not FOLDER_NAME.fullmatch(name):
            yield Mistake(
                ("name",),
                f"is {format_value(name)}, but must be a valid folder name: use letters, digits, dots, - and _",
            )
        yield from _check_table(TOP, {key: value for key, value in values.items() if key not in BY_NAME}, ())
        for name, table in BY_NAME.items():
            if name in ("", "stages", "stages.gate") or name not in values:
                continue
            if not isinstance(values[name], dict):
                yield Mistake(
                    (name,), f"is {format_value(values[name])}, but must be a table: write [{name}] with its keys below"
                )
            elif table.keys is not None:
                yield from _check_table(table, values[name], (name,))
        yield from self._check_paths()
        yield from self._check_stages()
        yield from self._check_environment_and_flags()
        yield from self._check_rules()
        yield from self._check_policy()
        yield from self._check_memory()
        yield from self._check_commands()
        if self._builds_command():
            yield from self._check_stage_settings()
        else:
            yield from self._check_settings_with_command()

    def _check_paths(self) -> Iterator[Mistake]:
        for key in ("cwd", "python"):
            path = self._values.get(key)
            if isinstance(path, str) and "\0" in path:
                yield Mistake((key,), "contains a NUL byte, which is not allowed in a path")
            elif isinstance(path, str) and path.startswith("~") and str(expand_user(path)).startswith("~"):
                yield Mistake((key,), f"is {format_value(path)}: this home folder is unknown; write the full path")

    def _trainer(self) -> str:
        """Return the trainer. If not set, it is `command` if there is a command."""
        stages = self._stages()
        has_command = "command" in self._values or any("command" in stage for stage in stages)
        trainer = self._values.get("trainer", frameworks.COMMAND if has_command else frameworks.default().name)
        return trainer if isinstance(trainer, str) else ""

    def _builds_command(self) -> bool:
        return frameworks.by_name(self._trainer()).builds_command

    def _framework(self) -> Framework:
        """Return the framework that `[settings]` are for. A command may use one too."""
        return frameworks.by_name(self._trainer()) if self._builds_command() else frameworks.default()

    def _stages(self) -> list[dict[str, Any]]:
        stages = self._values.get("stages", [])
        return stages if isinstance(stages, list) and all(isinstance(stage, dict) for stage in stages) else []

    def _table(self, name: str) -> dict[str, Any]:
        table = self._values.get(name, {})
        return table if isinstance(table, dict) else {}

    def _check_stages(self) -> Iterator[Mistake]:
        if "stages" in self._values and not self._stages():
            yield Mistake(
                ("stages",),
                "must be a list of tables: write [[stages]], with two brackets, above the keys of each stage",
            )
        framework, python = self._framework(), self._python()
        yield from framework.check_settings(self._table("settings"), ("settings",), python)
        names: dict[str, int] = {}
        for number, stage in enumerate(self._stages()):
            at: KeyPath = ("stages", number)
            yield from _check_table(STAGE, stage, at)
            if isinstance(stage.get("settings"), dict):
                yield from framework.check_settings(stage["settings"], (*at, "settings"), python)
            if isinstance(stage.get("gate"), dict):
                yield from _check_table(GATE, stage["gate"], (*at, "gate"))
                yield from self._check_gate(stage["gate"], (*at, "gate"))
            name = _stage_name(stage, number)
            if not FOLDER_NAME.fullmatch(name):
                yield Mistake(
                    (*at, "name"),
                    f"is {format_value(name)}, but must be a valid folder name: use letters, digits, dots, - and _",
                )
            elif name.lower() in names:
                yield Mistake(
                    (*at, "name"),
                    f"is {format_value(name)}, which is also the name of stage {names[name.lower()]}: names must be different",
                )
            names.setdefault(name.lower(), number + 1)
            if number == 0 and stage.get("from") in ("best", "last"):
                yield Mistake(
                    (*at, "from"),
                    f"is {format_value(stage['from'])}, but there is no stage before the first: delete it, or set the weights "
                    'with model = "....pt" in its settings',
                )

    def _check_gate(self, gate: dict[str, Any], at: KeyPath) -> Iterator[Mistake]:
        metric = gate.get("metric")
        if not isinstance(metric, str) or metric in METRICS or "/" in metric or not self._builds_command():
            return
        near = [name for name in METRICS if name.lower() == metric.lower()] or difflib.get_close_matches(
            metric, METRICS, 1
        )
        hint = f"did you mean {format_value(near[0])}?" if near else f"use one of {', '.join(METRICS)}"
        yield Mistake((*at, "metric"), f"is {format_value(metric)}: {hint}")

    def _check_environment_and_flags(self) -> Iterator[Mistake]:
        for name, value in self._table("environment").items():
            if isinstance(value, bool) or not isinstance(value, (str, int, float)):
                yield Mistake(
                    ("environment", name),
                    f'is {format_value(value, name=name)}, but must be a string: write {name} = "1"',
                )
            elif not name or "=" in name or "\0" in f"{name}{value}":
                yield Mistake(
                    ("environment", name),
                    "is not a valid variable: the name must not contain =, and neither name nor value a NUL byte",
                )
            elif name.startswith("HOLDFAST_"):
                yield Mistake(("environment", name), "is reserved for Holdfast: delete it")
        for name, value in self._table("flags").items():
            if not isinstance(value, str) or not value.strip() or len(value.split()) > 1:
                yield Mistake(
                    ("flags", name),
                    f'is {format_value(value, name=name)}, but must be one flag of the command: {name} = "--{name}"',
                )
        if self._table("flags") and self._builds_command():
            yield Mistake(("flags",), f"is for a command, but the trainer is {self._framework().title}: delete it")

    def _check_rules(self) -> Iterator[Mistake]:
        rules = self._context.rules
        for rule, limits in self._table("rules").items():
            at: KeyPath = ("rules", rule)
            if rules is not None and rule not in rules:
                near = difflib.get_close_matches(rule, list(rules), n=1)
                yield Mistake(
                    at, f"is not a rule: {f'did you mean {near[0]}?' if near else 'for a list, run holdfast rules'}"
                )
                continue
            if not isinstance(limits, dict):
                severity = format_value(limits) if limits in SEVERITIES else '"off"'
                yield Mistake(
                    at, f"is {format_value(limits)}, but must be a table: write {rule} = {{ severity = {severity} }}"
                )
                continue
            for name, value in limits.items():
                if name == "severity":
                    message = check_value(value, Value(("text",), choices=SEVERITIES))
                elif rules is not None and name not in rules[rule]:
                    near = difflib.get_close_matches(name, [*rules[rule], "severity"], n=1)
                    names = ", ".join(sorted(rules[rule])) or "no limits, only a severity"
                    message = (
                        f"is not a limit of this rule: {f'did you mean {near[0]}?' if near else f'it has {names}'}"
                    )
                else:
                    message = check_value(value, Value(("number",), least=0))
                if message:
                    yield Mistake((*at, name), message)

    def _check_policy(self) -> Iterator[Mistake]:
        policy = self._table("policy")

        def names_under(key: str) -> set[str]:
            listed = policy.get(key)
            return {str(name) for name in listed} if isinstance(listed, list) else set()

        devices = policy.get("devices", [])
        for number, device in enumerate(devices if isinstance(devices, list) else []):
            if message := check_device(device):
                yield Mistake(("policy", "devices", number), message)
        names = [*self._framework().setting_values, *_OTHER_CHANGEABLE, *self._table("flags")]
        for key in ("may_change", "never_change"):
            listed = policy.get(key, [])
            for number, name in enumerate(listed if isinstance(listed, list) else []):
                if isinstance(name, str) and name not in names and not name.startswith("environment."):
                    near = difflib.get_close_matches(name, names, n=1)
                    hint = (
                        f"did you mean {format_value(near[0])}?"
                        if near
                        else "no remedy changes a setting with this name"
                    )
                    yield Mistake(("policy", key, number), f"is {format_value(name)}: {hint}")
        both = names_under("may_change") & names_under("never_change")
        for name in sorted(both):
            yield Mistake(
                ("policy", "never_change"),
                f"contains {format_value(name)}, which is also in may_change: keep one of them",
            )

    def _check_memory(self) -> Iterator[Mistake]:
        memory = self._table("budget").get("memory")
        if memory is not None:
            amount = parse_bytes(memory, self._context.memory())
            if isinstance(amount, str):
                yield Mistake(("budget", "memory"), amount)

    def _check_commands(self) -> Iterator[Mistake]:
        values = self._values
        trainer = self._trainer()
        commands: list[tuple[KeyPath, Any]] = [(("command",), values["command"])] if "command" in values else []
        commands += [
            (("stages", number, "command"), stage["command"])
            for number, stage in enumerate(self._stages())
            if "command" in stage
        ]
        for at, command in commands:
            if self._builds_command():
                yield Mistake(
                    at, f'is not used: with trainer = "{trainer}", Holdfast builds the command; keep one of the two'
                )
            elif isinstance(command, (str, list)) and (message := _check_command(command)):
                yield Mistake(at, message)
        if trainer == frameworks.COMMAND and "command" not in values and not self._every_stage_has("command"):
            known = frameworks.default().name
            yield Mistake((), f'has no command: write command = "python train.py", or trainer = "{known}"')
        for key in ("on_event", "resume_with"):
            if isinstance(values.get(key), str) and (message := _check_command(values[key])):
                yield Mistake((key,), message)
        yield from self._check_resume(values.get("resume_with"), values.get("checkpoint"))

    def _check_resume(self, resume_with: Any, checkpoint: Any) -> Iterator[Mistake]:
        if self._builds_command():
            title = self._framework().title
            for key in ("resume_with", "checkpoint"):
                if key in self._values:
                    yield Mistake(
                        (key,), f"is only for trainer command: Holdfast knows how to resume {title}; delete it"
                    )
        elif resume_with and not checkpoint:
            yield Mistake(
                ("resume_with",), 'needs checkpoint, which names the file to resume from: add checkpoint = "out/*.pt"'
            )
        elif isinstance(resume_with, str) and "{" in resume_with and "{checkpoint}" not in resume_with:
            yield Mistake(
                ("resume_with",), f"is {format_value(resume_with)}: write {{checkpoint}} for the path of the checkpoint"
            )

    def _every_stage_has(self, key: str) -> bool:
        return bool(self._stages()) and all(stage.get(key) for stage in self._stages())

    def _check_stage_settings(self) -> Iterator[Mistake]:
        """Check the settings of each stage together with those of the plan."""
        common = self._table("settings")
        for number, stage in enumerate(self._stages() or [{}]):
            own = stage.get("settings", {})
            own = own if isinstance(own, dict) else {}
            at: KeyPath = ("stages", number, "settings")
            where: dict[str, KeyPath] = {name: ("settings", name) for name in common}
            where |= {name: (*at, name) for name in own}
            missing_at: KeyPath = ("settings",) if "settings" in self._values or not self._stages() else at[:2]
            yield from self._framework().check_stage({**common, **own}, where, missing_at)
            if number and stage.get("from") != "scratch" and "model" in own:
                yield Mistake(
                    (*at, "model"),
                    'is not used: this stage starts with the weights of the previous one; add from = "scratch", or delete it',
                )

    def _check_settings_with_command(self) -> Iterator[Mistake]:
        """Check settings that override those of a command. The command itself determines what it trains."""
        tables: list[tuple[KeyPath, Any]] = [(("settings",), self._table("settings"))]
        tables += [(("stages", n, "settings"), stage.get("settings")) for n, stage in enumerate(self._stages())]
        for at, settings in tables:
            for name in SET_BY_COMMAND:
                if isinstance(settings, dict) and name in settings:
                    yield Mistake((*at, name), "is set by the command itself: delete it, or change the command")

    def _cwd(self) -> Path:
        cwd = self._values.get("cwd")
        folder = self._path.parent
        return folder / expand_user(cwd) if isinstance(cwd, str) else folder

    def _python(self) -> str | None:
        """Return the absolute path of the interpreter. Keep symlinks: the path of a venv interpreter matters."""
        python = self._values.get("python")
        if not isinstance(python, str) or os.sep not in python:
            return python if isinstance(python, str) else None
        return os.path.normpath(self._cwd() / expand_user(python))

    def _build(self) -> None:
        built = dict(self._values)
        built["trainer"] = self._trainer()
        built["cwd"] = os.path.normpath(self._cwd())
        built.setdefault("name", to_folder_name(self._path.stem, "plan"))
        if (python := self._python()) is not None:
            built["python"] = python
        if "command" in built:
            built["command"] = _split(built["command"])
        built["stages"] = [
            {**stage, "name": _stage_name(stage, number)}
            | ({"command": _split(stage["command"])} if "command" in stage else {})
            for number, stage in enumerate(self._stages())
        ]
        if "memory" in self._table("budget"):
            built["budget"] = {
                **built["budget"],
                "memory": parse_bytes(built["budget"]["memory"], self._context.memory()),
            }
        built["environment"] = {name: str(value) for name, value in self._table("environment").items()}
        self._built = built


def _check_table(table: Table, values: Mapping[str, Any], at: KeyPath) -> Iterator[Mistake]:
    """Check for unknown keys and invalid values."""
    keys = {key.name: key for key in table.keys or ()}
    for name, value in values.items():
        if name not in keys:
            yield Mistake((*at, name), _describe_unknown_key(name, table, tuple(keys)))
        elif message := check_value(value, keys[name].holds):
            yield Mistake((*at, name), message)


def _describe_unknown_key(name: str, table: Table, keys: tuple[str, ...]) -> str:
    if not table.name and name in _INTERNAL:
        return _INTERNAL[name]
    if _ALIASES.get(name) in (*keys, *BY_NAME):
        return f"is called {_ALIASES[name]}"
    if name in HOLDFAST_KEYS:
        return f"is unknown here; use {HOLDFAST_KEYS[name]}"
    if _title_of(name):
        return f"is a setting of {_title_of(name)}: move it to {'the settings of this stage' if table is STAGE else '[settings]'}"
    sections = [section for section in BY_NAME if section and "." not in section] if not table.name else []
    near = difflib.get_close_matches(name.lower(), [*keys, *sections], n=1)
    if near:
        return f"is unknown: did you mean {f'[{near[0]}]' if near[0] in sections else near[0]}?"
    elsewhere = [place for place, other in BY_NAME.items() if any(key.name == name for key in other.keys or ())]
    if elsewhere or name in BY_NAME:
        return f"is not allowed here: move it {describe_place(elsewhere[0] if elsewhere else '')}"
    if near := difflib.get_close_matches(name.lower(), _all_settings(), n=1, cutoff=0.75):
        return f"is unknown; if you mean the setting {near[0]} of {_title_of(near[0])}, move it to [settings]"
    return f"is unknown; the keys allowed here are {', '.join((*keys, *sections))}"


def _title_of(setting: str) -> str:
    """Return the framework that has this setting; empty if none has."""
    titles = (framework.title for framework in frameworks.all_frameworks() if setting in framework.setting_values)
    return next(titles, "")


def _all_settings() -> list[str]:
    return [name for framework in frameworks.all_frameworks() for name in framework.setting_values]


def _stage_name(stage: Mapping[str, Any], number: int) -> str:
    name = stage.get("name")
    return name if isinstance(name, str) and name else str(number + 1)


def _split(command: str | list[str]) -> list[str]:
    return shlex.split(command) if isinstance(command, str) else list(command)


def _check_command(command: str | list[str]) -> str | None:
    try:
        words = _split(command)
    except ValueError:
        return f"is {format_value(command)}: a quote is not closed"
    if not words or not words[0]:
        return 'is empty: write, for example, "python train.py"'
    if any("\0" in str(word) for word in words):
        return "contains a NUL byte, which is not allowed in a command"
    return None

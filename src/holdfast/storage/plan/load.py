"""From a plan file to a Plan, or to all of its mistakes at once: each with its line, its key, and what to write instead."""

from __future__ import annotations

import difflib
import itertools
import os
import shlex
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import msgspec

from holdfast.schema.errors import PlanInvalid
from holdfast.schema.plan import Plan
from holdfast.schema.plan_keys import BY_NAME, GATE, METRICS, STAGE, TOP
from holdfast.schema.ultralytics_settings import SETTINGS
from holdfast.schema.values import Value
from holdfast.storage.folder import FOLDER_NAME, fit_for_a_folder
from holdfast.storage.plan import ultralytics_settings
from holdfast.storage.plan.text import MAX_MISTAKES, parsed, text_of, told
from holdfast.storage.plan.ultralytics_settings import OUTSIDE, Mistake, place_of
from holdfast.storage.plan.values import bytes_in, complaint, device_complaint, written
from holdfast.storage.redact import Redactor
from holdfast.storage.safe_files import expand_user

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator, Mapping
    from pathlib import Path

    from holdfast.schema.plan_keys import Table
    from holdfast.storage.plan.toml_lines import KeyPath

SEVERITIES = ("off", "note", "warn", "fatal")
_INTERNAL = {"overrides": "is what remedies have changed, and Holdfast's own to write: use [settings]"}
_ALIASES = {"stage": "stages", "start": "from", "time": "hours"}
NAMED_BY_THE_COMMAND = ("model", "task", "mode")
"""They cannot be set from outside."""
_OTHERS_CHANGED = (
    *("validation.every", "validation.batch", "validation.max_det", "validation.on_cpu"),
    *("clear_cache.epochs", "clear_cache.steps", "assigner", "accumulate"),
)
"""What remedies change beside settings of Ultralytics."""


def _physical_memory() -> int:
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


@dataclass(frozen=True)
class Known:
    """What the file is read against, beyond itself."""

    memory: Callable[[], int] = _physical_memory
    """Bytes that a share such as "80%" is of."""
    rules: Mapping[str, Collection[str]] | None = None
    """Rule -> its limits; their names are taken as they are where it is None."""
    settings_of: Callable[[str | None], Collection[str]] = field(default=lambda _: ())
    """The settings that the Ultralytics of an interpreter knows: it may be newer than the list here."""


def read(path: Path, known: Known | None = None) -> Plan:
    """The plan in this file. Raises PlanInvalid, with all that is wrong with it."""
    text = text_of(path)
    values, lines = parsed(text, path)
    reading = _Reading(path, values, known or Known())
    mistakes = reading.mistakes()
    if mistakes:
        raise PlanInvalid(told(path, mistakes, lines), next_step="mend the file; docs/plans.md explains every key")
    return reading.plan()


class _Reading:
    """One file's values on their way to a plan."""

    def __init__(self, path: Path, values: dict[str, Any], known: Known) -> None:
        self._path = path.absolute()
        self._known = known
        self._values = dict(values)
        self._alias: dict[str, str] = {}
        if "stage" in values and "stages" not in values:
            self._values["stages"] = self._values.pop("stage")
            self._alias["stages"] = "stage"
        self._built: dict[str, Any] = {}

    def plan(self) -> Plan:
        try:
            return msgspec.convert(self._built, Plan)
        except msgspec.ValidationError as error:
            raise PlanInvalid(f"{self._path} cannot be used: {Redactor().text(str(error))}.") from None

    def mistakes(self) -> list[Mistake]:
        found = [self._at_its_place(mistake) for mistake in itertools.islice(self._all(), MAX_MISTAKES + 1)]
        if not found:
            self._build()
        return found

    def _at_its_place(self, mistake: Mistake) -> Mistake:
        """Under the name that was written, where that is another than the plan's own."""
        first, *rest = mistake.path or ("",)
        return mistake._replace(path=(self._alias[first], *rest)) if first in self._alias else mistake

    def _all(self) -> Iterator[Mistake]:
        values = self._values
        name = values.get("name")
        if isinstance(name, str) and not FOLDER_NAME.fullmatch(name):
            yield Mistake(("name",), f"is {written(name)}: a folder gets this name; use letters, digits, dots, - and _")
        yield from _in_table(TOP, {key: value for key, value in values.items() if key not in BY_NAME}, ())
        for name, table in BY_NAME.items():
            if name in ("", "stages", "stages.gate") or name not in values:
                continue
            if not isinstance(values[name], dict):
                yield Mistake(
                    (name,), f"is {written(values[name])}: it is a table, written [{name}] with its keys below"
                )
            elif table.keys is not None:
                yield from _in_table(table, values[name], (name,))
        yield from self._paths()
        yield from self._stages_one_by_one()
        yield from self._environment_and_flags()
        yield from self._rules()
        yield from self._policy()
        yield from self._memory()
        yield from self._commands()
        if self._trainer() == "ultralytics":
            yield from self._ultralytics()
        else:
            yield from self._settings_beside_a_command()

    def _paths(self) -> Iterator[Mistake]:
        for key in ("cwd", "python"):
            given = self._values.get(key)
            if isinstance(given, str) and "\0" in given:
                yield Mistake((key,), "has a zero byte in it, which no path can have")
            elif isinstance(given, str) and given.startswith("~") and str(expand_user(given)).startswith("~"):
                yield Mistake((key,), f"is {written(given)}: that home folder is not known here; write the whole path")

    def _trainer(self) -> str:
        """`command` where there is one, unless it is said."""
        stages = self._stages()
        given = "command" in self._values or any("command" in stage for stage in stages)
        trainer = self._values.get("trainer", "command" if given else "ultralytics")
        return trainer if isinstance(trainer, str) else ""

    def _stages(self) -> list[dict[str, Any]]:
        stages = self._values.get("stages", [])
        return stages if isinstance(stages, list) and all(isinstance(stage, dict) for stage in stages) else []

    def _table(self, name: str) -> dict[str, Any]:
        table = self._values.get(name, {})
        return table if isinstance(table, dict) else {}

    def _more_settings(self) -> Collection[str]:
        return self._known.settings_of(self._python())

    def _stages_one_by_one(self) -> Iterator[Mistake]:
        if "stages" in self._values and not self._stages():
            yield Mistake(
                ("stages",), "is a list of tables: write [[stages]], with two brackets, above the keys of each stage"
            )
        yield from ultralytics_settings.each_setting(self._table("settings"), ("settings",), self._more_settings)
        names: dict[str, int] = {}
        for number, stage in enumerate(self._stages()):
            at: KeyPath = ("stages", number)
            yield from _in_table(STAGE, stage, at)
            if isinstance(stage.get("settings"), dict):
                yield from ultralytics_settings.each_setting(stage["settings"], (*at, "settings"), self._more_settings)
            if isinstance(stage.get("gate"), dict):
                yield from _in_table(GATE, stage["gate"], (*at, "gate"))
                yield from self._gate(stage["gate"], (*at, "gate"))
            name = _stage_name(stage, number)
            if not FOLDER_NAME.fullmatch(name):
                yield Mistake(
                    (*at, "name"), f"is {written(name)}: a folder gets this name; use letters, digits, dots, - and _"
                )
            elif name.lower() in names:
                yield Mistake(
                    (*at, "name"), f"is {written(name)}, as that of stage {names[name.lower()]}: names must differ"
                )
            names.setdefault(name.lower(), number + 1)
            if number == 0 and stage.get("from") in ("best", "last"):
                yield Mistake(
                    (*at, "from"),
                    f"is {written(stage['from'])}, but no stage comes before the first: leave it out, or name weights "
                    'with model = "....pt" in its settings',
                )

    def _gate(self, gate: dict[str, Any], at: KeyPath) -> Iterator[Mistake]:
        metric = gate.get("metric")
        if not isinstance(metric, str) or metric in METRICS or "/" in metric or self._trainer() != "ultralytics":
            return
        near = [name for name in METRICS if name.lower() == metric.lower()] or difflib.get_close_matches(
            metric, METRICS, 1
        )
        hint = f"did you mean {written(near[0])}?" if near else f"it is one of {', '.join(METRICS)}"
        yield Mistake((*at, "metric"), f"is {written(metric)}: {hint}")

    def _environment_and_flags(self) -> Iterator[Mistake]:
        for name, value in self._table("environment").items():
            if isinstance(value, bool) or not isinstance(value, (str, int, float)):
                yield Mistake(
                    ("environment", name), f'is {written(value, name=name)}: a variable is a text: write {name} = "1"'
                )
            elif not name or "=" in name or "\0" in f"{name}{value}":
                yield Mistake(
                    ("environment", name), "cannot be a variable: a name has no = in it, and nothing a zero byte"
                )
            elif name.startswith("HOLDFAST_"):
                yield Mistake(("environment", name), "is how Holdfast talks with the training: leave it out")
        for name, value in self._table("flags").items():
            if not isinstance(value, str) or not value.strip() or len(value.split()) > 1:
                yield Mistake(
                    ("flags", name),
                    f'is {written(value, name=name)}: name one flag of the command: {name} = "--{name}"',
                )
        if self._table("flags") and self._trainer() == "ultralytics":
            yield Mistake(("flags",), "names flags of a command, but the trainer is Ultralytics: leave it out")

    def _rules(self) -> Iterator[Mistake]:
        rules = self._known.rules
        for rule, limits in self._table("rules").items():
            at: KeyPath = ("rules", rule)
            if rules is not None and rule not in rules:
                near = difflib.get_close_matches(rule, list(rules), n=1)
                yield Mistake(at, f"is no rule: {f'did you mean {near[0]}?' if near else 'holdfast rules lists them'}")
                continue
            if not isinstance(limits, dict):
                severity = written(limits) if limits in SEVERITIES else '"off"'
                yield Mistake(at, f"is {written(limits)}: write {rule} = {{ severity = {severity} }}")
                continue
            for name, value in limits.items():
                if name == "severity":
                    message = complaint(value, Value(("text",), choices=SEVERITIES))
                elif rules is not None and name not in rules[rule]:
                    near = difflib.get_close_matches(name, [*rules[rule], "severity"], n=1)
                    has = ", ".join(sorted(rules[rule])) or "no limit to set, only a severity"
                    message = f"is no limit of this rule: {f'did you mean {near[0]}?' if near else f'it has {has}'}"
                else:
                    message = complaint(value, Value(("number",), least=0))
                if message:
                    yield Mistake((*at, name), message)

    def _policy(self) -> Iterator[Mistake]:
        policy = self._table("policy")

        def listed_under(key: str) -> set[str]:
            listed = policy.get(key)
            return {str(name) for name in listed} if isinstance(listed, list) else set()

        devices = policy.get("devices", [])
        for number, device in enumerate(devices if isinstance(devices, list) else []):
            if message := device_complaint(device):
                yield Mistake(("policy", "devices", number), message)
        names = [*SETTINGS, *_OTHERS_CHANGED, *self._table("flags")]
        for key in ("may_change", "never_change"):
            listed = policy.get(key, [])
            for number, name in enumerate(listed if isinstance(listed, list) else []):
                if isinstance(name, str) and name not in names and not name.startswith("environment."):
                    near = difflib.get_close_matches(name, names, n=1)
                    hint = f"did you mean {written(near[0])}?" if near else "no remedy changes anything of that name"
                    yield Mistake(("policy", key, number), f"is {written(name)}: {hint}")
        both = listed_under("may_change") & listed_under("never_change")
        for name in sorted(both):
            yield Mistake(
                ("policy", "never_change"), f"has {written(name)}, which stands in may_change too: keep one of them"
            )

    def _memory(self) -> Iterator[Mistake]:
        memory = self._table("budget").get("memory")
        if memory is not None:
            amount = bytes_in(memory, self._known.memory())
            if isinstance(amount, str):
                yield Mistake(("budget", "memory"), amount)

    def _commands(self) -> Iterator[Mistake]:
        values = self._values
        trainer = self._trainer()
        commands: list[tuple[KeyPath, Any]] = [(("command",), values["command"])] if "command" in values else []
        commands += [
            (("stages", number, "command"), stage["command"])
            for number, stage in enumerate(self._stages())
            if "command" in stage
        ]
        for at, command in commands:
            if trainer == "ultralytics":
                yield Mistake(
                    at, 'is not used: trainer = "ultralytics" starts the training itself; keep one of the two'
                )
            elif isinstance(command, (str, list)) and (message := _not_split(command)):
                yield Mistake(at, message)
        if trainer == "command" and "command" not in values and not self._every_stage_has("command"):
            yield Mistake((), 'has nothing to start: write command = "python train.py", or trainer = "ultralytics"')
        for key in ("on_event", "resume_with"):
            if isinstance(values.get(key), str) and (message := _not_split(values[key])):
                yield Mistake((key,), message)
        yield from self._going_on(values.get("resume_with"), values.get("checkpoint"), trainer)

    def _going_on(self, resume_with: Any, checkpoint: Any, trainer: str) -> Iterator[Mistake]:
        if trainer == "ultralytics":
            for key in ("resume_with", "checkpoint"):
                if key in self._values:
                    yield Mistake(
                        (key,), "is for a command of yours: with Ultralytics, Holdfast knows how to go on; leave it out"
                    )
        elif resume_with and not checkpoint:
            yield Mistake(("resume_with",), 'says how to go on, but not from which file: add checkpoint = "out/*.pt"')
        elif isinstance(resume_with, str) and "{" in resume_with and "{checkpoint}" not in resume_with:
            yield Mistake(
                ("resume_with",), f"is {written(resume_with)}: the checkpoint's path is written {{checkpoint}}"
            )

    def _every_stage_has(self, key: str) -> bool:
        return bool(self._stages()) and all(stage.get(key) for stage in self._stages())

    def _ultralytics(self) -> Iterator[Mistake]:
        """What belongs together in each stage, with the plan's settings under its own."""
        common = self._table("settings")
        for number, stage in enumerate(self._stages() or [{}]):
            own = stage.get("settings", {})
            own = own if isinstance(own, dict) else {}
            at: KeyPath = ("stages", number, "settings")
            where: dict[str, KeyPath] = {name: ("settings", name) for name in common}
            where |= {name: (*at, name) for name in own}
            missing_at: KeyPath = ("settings",) if "settings" in self._values or not self._stages() else at[:2]
            yield from ultralytics_settings.together({**common, **own}, where, missing_at)
            if number and stage.get("from") != "scratch" and "model" in own:
                yield Mistake(
                    (*at, "model"),
                    'is not used: this stage begins with the weights of the one before; add from = "scratch", or leave it out',
                )

    def _settings_beside_a_command(self) -> Iterator[Mistake]:
        """They are set from outside, where the command trains with Ultralytics; what it trains is the command's own to say."""
        tables: list[tuple[KeyPath, Any]] = [(("settings",), self._table("settings"))]
        tables += [(("stages", n, "settings"), stage.get("settings")) for n, stage in enumerate(self._stages())]
        for at, settings in tables:
            for name in NAMED_BY_THE_COMMAND:
                if isinstance(settings, dict) and name in settings:
                    yield Mistake((*at, name), "is named by the command itself: leave it out, or change the command")

    def _cwd(self) -> Path:
        given = self._values.get("cwd")
        folder = self._path.parent
        return folder / expand_user(given) if isinstance(given, str) else folder

    def _python(self) -> str | None:
        """A path is made whole but never followed: an interpreter of a venv is a link, and its name matters."""
        given = self._values.get("python")
        if not isinstance(given, str) or os.sep not in given:
            return given if isinstance(given, str) else None
        return os.path.normpath(self._cwd() / expand_user(given))

    def _build(self) -> None:
        built = dict(self._values)
        built["trainer"] = self._trainer()
        built["cwd"] = os.path.normpath(self._cwd())
        built.setdefault("name", fit_for_a_folder(self._path.stem, "plan"))
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
            built["budget"] = {**built["budget"], "memory": bytes_in(built["budget"]["memory"], self._known.memory())}
        built["environment"] = {name: str(value) for name, value in self._table("environment").items()}
        self._built = built


def _in_table(table: Table, values: Mapping[str, Any], at: KeyPath) -> Iterator[Mistake]:
    """Keys that are unknown here, and values that their keys may not hold."""
    keys = {key.name: key for key in table.keys or ()}
    for name, value in values.items():
        if name not in keys:
            yield Mistake((*at, name), _unknown_key(name, table, tuple(keys)))
        elif message := complaint(value, keys[name].holds):
            yield Mistake((*at, name), message)


def _unknown_key(name: str, table: Table, keys: tuple[str, ...]) -> str:
    if not table.name and name in _INTERNAL:
        return _INTERNAL[name]
    if _ALIASES.get(name) in (*keys, *BY_NAME):
        return f"is written {_ALIASES[name]}"
    if name in OUTSIDE:
        return f"is not known here; Holdfast has it: {OUTSIDE[name]}"
    if name in SETTINGS:
        return f"is a setting of Ultralytics: it belongs into {'the settings of this stage' if table is STAGE else '[settings]'}"
    sections = [section for section in BY_NAME if section and "." not in section] if not table.name else []
    near = difflib.get_close_matches(name.lower(), [*keys, *sections], n=1)
    if near:
        return f"is not known: did you mean {f'[{near[0]}]' if near[0] in sections else near[0]}?"
    elsewhere = [place for place, other in BY_NAME.items() if any(key.name == name for key in other.keys or ())]
    if elsewhere or name in BY_NAME:
        return f"does not stand here: it belongs {place_of(elsewhere[0] if elsewhere else '')}"
    if near := difflib.get_close_matches(name.lower(), list(SETTINGS), n=1, cutoff=0.75):
        return f"is not known; if you mean {near[0]}, a setting of Ultralytics, it belongs into [settings]"
    return f"is not known; here stand {', '.join((*keys, *sections))}"


def _stage_name(stage: Mapping[str, Any], number: int) -> str:
    name = stage.get("name")
    return name if isinstance(name, str) and name else str(number + 1)


def _split(command: str | list[str]) -> list[str]:
    return shlex.split(command) if isinstance(command, str) else list(command)


def _not_split(command: str | list[str]) -> str | None:
    try:
        words = _split(command)
    except ValueError:
        return f"is {written(command)}: a quote in it was not closed"
    if not words or not words[0]:
        return 'is empty: write e.g. "python train.py"'
    if any("\0" in str(word) for word in words):
        return "has a zero byte in it, which no command can have"
    return None

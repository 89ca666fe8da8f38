"""Settings on a user's command line, read and rewritten only if their meaning is clear.

    --batch-size 16    --batch-size=16    -b 16    -b16    batch=16    ++train.batch_size=16

A setting has a name in Holdfast (`batch`) and the spelling that this command uses (`--batch-size`, or `batch=`). A change is
reported and applied by its spelling.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, NamedTuple

from holdfast.schema.devices import parse_device

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

SPELLINGS: dict[str, tuple[str, ...]] = {
    "batch": (
        *("batch", "batch_size", "batchsize", "bs", "b", "train_batch_size", "micro_batch_size"),
        *("per_device_train_batch_size", "per_gpu_train_batch_size"),
    ),
    "validation.batch": (
        *("val_batch", "val_batch_size", "eval_batch_size", "valid_batch_size", "test_batch_size"),
        "per_device_eval_batch_size",
    ),
    "accumulation": (
        *("accumulation", "accumulate", "accum", "accum_steps", "accum_iter", "accumulation_steps", "grad_accum"),
        *("grad_accum_steps", "grad_accumulation_steps", "gradient_accumulation", "gradient_accumulation_steps"),
        *("accumulate_grad_batches", "update_freq"),
    ),
    "imgsz": ("imgsz", "img", "img_size", "image_size", "resolution"),
    "device": ("device", "accelerator"),
    "workers": ("workers", "num_workers", "n_workers", "nworkers", "j", "dataloader_num_workers"),
    "lr0": ("lr", "lr0", "learning_rate"),
    "epochs": ("epochs", "num_epochs", "n_epochs", "max_epochs", "num_train_epochs"),
}
"""Holdfast's names -> the spellings that commands use: underscores for dashes, without everything up to the last dot."""
OTHER_NAMES = {
    "accumulate": "accumulation",
    "lr": "lr0",
    "learning_rate": "lr0",
    "batch_size": "batch",
    "image_size": "imgsz",
}
"""Aliases of the names that a plan may use in `flags`."""
_NAME_BY_SPELLING = {spelling: name for name, spellings in SPELLINGS.items() for spelling in spellings}
_EVALUATION_WORDS = {"val", "valid", "validation", "eval", "evaluation", "test", "infer", "inference", "predict"}
_LAUNCHERS = {
    "torch.distributed.run",
    "torch.distributed.launch",
    "accelerate.commands.launch",
    "deepspeed.launcher.runner",
}
_SHELLS = {"sh", "bash", "zsh", "dash", "ksh", "fish"}

_FLAG = re.compile(r"^(--?[A-Za-z][\w.-]*)(=)?(.*)$", re.DOTALL)
_ATTACHED = re.compile(r"^(-[bj])(\d+)$")
_PAIR = re.compile(r"^\+{0,2}([A-Za-z][\w./-]*=)(.*)$", re.DOTALL)
_WHOLE = re.compile(r"^\d{1,9}$")
_NUMBER = re.compile(r"^(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?$")


class Setting(NamedTuple):
    """One occurrence of a setting on a command line."""

    name: str
    """Holdfast's name."""
    spelling: str
    """The spelling of the command: `--batch-size`, or `batch=`."""
    value: Any
    place: int
    """The index of the argument that contains the value."""
    prefix: str
    """The text before the value in that argument."""


def settings_in(command: Sequence[str], flags: Mapping[str, str] | None = None) -> list[Setting]:
    """Return all recognized settings in order. `flags`, which the plan defines, take precedence over the built-in spellings."""
    by_flag = {_normalize(spelling): OTHER_NAMES.get(name, name) for name, spelling in (flags or {}).items()}
    taken = set(by_flag.values())

    def get_name(spelling: str) -> str | None:
        if spelling in by_flag:
            return by_flag[spelling]
        known = get_known_name(spelling)
        return None if known in taken else known

    first = _first_argument(command)
    if first is None:
        return []
    found: list[Setting] = []
    place = first
    while place < len(command):
        argument = command[place]
        if argument == "--":
            break
        following = command[place + 1] if place + 1 < len(command) else None
        settings, consumed = _read_argument(argument, following, place, get_name)
        found += settings
        place += consumed
    return found


def values_in(command: Sequence[str], flags: Mapping[str, str] | None = None) -> dict[str, Any]:
    """Return name -> value. If a setting occurs twice, the last value counts, as it does for most commands."""
    return {setting.name: setting.value for setting in settings_in(command, flags)}


def spelling_of(name: str, command: Sequence[str], flags: Mapping[str, str] | None = None) -> str | None:
    """Return the spelling of a setting: that on the command line, or else that in the plan's `flags`; None if both are missing."""
    spellings = [setting.spelling for setting in settings_in(command, flags) if setting.name == name]
    if spellings:
        return spellings[-1]
    if _first_argument(command) is None:
        return None
    return next(
        (_add_dashes(spelling) for known, spelling in (flags or {}).items() if OTHER_NAMES.get(known, known) == name),
        None,
    )


def is_spelling(what: str) -> bool:
    """Return whether the setting of a change is a spelling on a command line and not a name in Holdfast."""
    return what.startswith("-") or what.endswith("=")


def get_known_name(spelling: str) -> str | None:
    """Return the name for a spelling, if it is clear: `--data.batch-size` is a batch size, `--val.batch-size` is not."""
    parts = _normalize(spelling).replace("/", ".").split(".")
    if _EVALUATION_WORDS.intersection(parts[:-1]):
        return None
    return _NAME_BY_SPELLING.get(parts[-1])


def rewrite_command(
    command: Sequence[str], spelling: str, value: Any, flags: Mapping[str, str] | None = None
) -> list[str]:
    """Return the command with another value at every occurrence of a setting; appended if only `flags` define it."""
    new = list(command)
    places = [
        setting for setting in settings_in(command, flags) if _normalize(setting.spelling) == _normalize(spelling)
    ]
    for setting in places:
        new[setting.place] = f"{setting.prefix}{_format(value)}"
    if places or _normalize(spelling) not in {_normalize(by_flag) for by_flag in (flags or {}).values()}:
        return new
    end = new.index("--", _first_argument(new) or 0) if "--" in new[_first_argument(new) or 0 :] else len(new)
    added = [f"{spelling}{_format(value)}"] if spelling.endswith("=") else [spelling, _format(value)]
    return [*new[:end], *added, *new[end:]]


def _read_argument(
    argument: str, following: str | None, place: int, get_name: Callable[[str], str | None]
) -> tuple[list[Setting], int]:
    """Return the setting that starts at this argument, and the number of arguments that were read."""
    if attached := _ATTACHED.match(argument):
        name = get_name(_normalize(attached[1]))
        return _make_setting(name, attached[1], attached[2], place, attached[1]), 1
    if flag := _FLAG.match(argument):
        name = get_name(_normalize(flag[1]))
        if flag[2]:
            return _make_setting(name, flag[1], flag[3], place, f"{flag[1]}="), 1
        if following is None or following == "--" or _is_flag(following):
            return [], 1
        # The next argument may be the value of the flag even if the flag is unknown. In that case, skip it.
        return _make_setting(name, flag[1], following, place + 1, ""), 2
    if pair := _PAIR.match(argument):
        prefix = argument[: len(argument) - len(pair[2])]
        return _make_setting(get_name(_normalize(pair[1])), pair[1], pair[2], place, prefix), 1
    return [], 1


def _make_setting(name: str | None, spelling: str, text: str, place: int, prefix: str) -> list[Setting]:
    value = _parse_value(name, text) if name is not None else None
    return [] if name is None or value is None else [Setting(name, spelling, value, place, prefix)]


def _parse_value(name: str, text: str) -> Any:
    """Return the parsed value; None if it is not a literal value, such as `--batch-size auto` or `--device $GPU`."""
    if name == "device":
        return text if parse_device(text).kind.is_known and not text.startswith("-") else None
    if name == "lr0":
        return float(text) if _NUMBER.match(text) else None
    return int(text) if _WHOLE.match(text) else None


def _is_flag(argument: str) -> bool:
    return argument.startswith("-") and not _NUMBER.match(argument.lstrip("-"))


def _normalize(spelling: str) -> str:
    return spelling.lstrip("-+").rstrip("=").lower().replace("-", "_")


def _add_dashes(spelling: str) -> str:
    """Add dashes to a flag that a plan defines without them, unless it has the form `name=`."""
    return spelling if is_spelling(spelling) else f"--{spelling}"


def _format(value: Any) -> str:
    return f"{value:.10g}" if isinstance(value, float) else str(value)


def _first_argument(command: Sequence[str]) -> int | None:
    """Return the index of the first argument of the training, after the script or module; None for `sh -c` and the like."""
    words = [word.rpartition("/")[2] for word in command]
    for place, word in enumerate(words):
        if word in _SHELLS and any(re.match(r"^-\w*c$", argument) for argument in command[place + 1 : place + 4]):
            return None
        if word.endswith(".py"):
            return place + 1
        before = words[place - 1] if place else ""
        if before == "-m" and word not in _LAUNCHERS:
            return place + 1
    return 1 if command else None

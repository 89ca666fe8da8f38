"""Settings on somebody's command line: read, and rewritten, only where it is plain what they mean.

    --batch-size 16    --batch-size=16    -b 16    -b16    batch=16    ++train.batch_size=16

A setting has a name of ours (`batch`) and the spelling that this command uses (`--batch-size`, or `batch=`): the spelling
is what a change is told by, and what it is applied by.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, NamedTuple

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
"""Our names, and what commands call them: dashes as underscores, without what stands before the last dot."""
OTHER_NAMES = {
    "accumulate": "accumulation",
    "lr": "lr0",
    "learning_rate": "lr0",
    "batch_size": "batch",
    "image_size": "imgsz",
}
"""What people may write for our names in a plan's `flags`."""
_OURS = {spelling: ours for ours, spellings in SPELLINGS.items() for spelling in spellings}
_OF_EVALUATION = {"val", "valid", "validation", "eval", "evaluation", "test", "infer", "inference", "predict"}
_LAUNCHERS = {
    "torch.distributed.run",
    "torch.distributed.launch",
    "accelerate.commands.launch",
    "deepspeed.launcher.runner",
}
_RUNS_TEXT = {"sh", "bash", "zsh", "dash", "ksh", "fish"}

_FLAG = re.compile(r"^(--?[A-Za-z][\w.-]*)(=)?(.*)$", re.DOTALL)
_ATTACHED = re.compile(r"^(-[bj])(\d+)$")
_PAIR = re.compile(r"^\+{0,2}([A-Za-z][\w./-]*=)(.*)$", re.DOTALL)
_DEVICE = re.compile(r"^(?:cpu|mps|gpu|cuda|xpu|npu|hpu)(?::\d+)?$|^\d+(?:,\d+)*$")
_WHOLE = re.compile(r"^\d{1,9}$")
_NUMBER = re.compile(r"^(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?$")


class Setting(NamedTuple):
    """One place on a command line that holds a setting."""

    name: str
    """Ours."""
    spelling: str
    """As the command has it: `--batch-size`, or `batch=`."""
    value: Any
    place: int
    """Which argument holds the value."""
    prefix: str
    """What stands before the value in that argument."""


def settings_in(command: Sequence[str], flags: Mapping[str, str] | None = None) -> list[Setting]:
    """All that is understood, in their order. `flags` are those that the plan names: they come before our own guesses."""
    named = {_bare(spelling): OTHER_NAMES.get(name, name) for name, spelling in (flags or {}).items()}
    taken = set(named.values())

    def ours(spelling: str) -> str | None:
        if spelling in named:
            return named[spelling]
        known = known_as(spelling)
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
        settings, used = _read(argument, following, place, ours)
        found += settings
        place += used
    return found


def values_in(command: Sequence[str], flags: Mapping[str, str] | None = None) -> dict[str, Any]:
    """Our name -> value. Where something stands there twice, the last one counts, as it does for most commands."""
    return {setting.name: setting.value for setting in settings_in(command, flags)}


def spelling_of(name: str, command: Sequence[str], flags: Mapping[str, str] | None = None) -> str | None:
    """How this command is told the setting: by what stands there, or by what the plan calls it; None where neither is known."""
    spellings = [setting.spelling for setting in settings_in(command, flags) if setting.name == name]
    if spellings:
        return spellings[-1]
    if _first_argument(command) is None:
        return None
    return next(
        (_written(spelling) for known, spelling in (flags or {}).items() if OTHER_NAMES.get(known, known) == name), None
    )


def is_spelling(what: str) -> bool:
    """Whether a change's `what` is a command's own word rather than a setting of ours."""
    return what.startswith("-") or what.endswith("=")


def known_as(spelling: str) -> str | None:
    """Our name for what a command may call it, where that is plain: `--data.batch-size` is a batch, `--val.batch-size` is not."""
    parts = _bare(spelling).replace("/", ".").split(".")
    if _OF_EVALUATION.intersection(parts[:-1]):
        return None
    return _OURS.get(parts[-1])


def rewritten(command: Sequence[str], spelling: str, value: Any, flags: Mapping[str, str] | None = None) -> list[str]:
    """The command with another value for one setting, wherever it stands; added where only the plan names it."""
    new = list(command)
    places = [setting for setting in settings_in(command, flags) if _bare(setting.spelling) == _bare(spelling)]
    for setting in places:
        new[setting.place] = f"{setting.prefix}{_text(value)}"
    if places or _bare(spelling) not in {_bare(named) for named in (flags or {}).values()}:
        return new
    end = new.index("--", _first_argument(new) or 0) if "--" in new[_first_argument(new) or 0 :] else len(new)
    added = [f"{spelling}{_text(value)}"] if spelling.endswith("=") else [spelling, _text(value)]
    return [*new[:end], *added, *new[end:]]


def _read(
    argument: str, following: str | None, place: int, ours: Callable[[str], str | None]
) -> tuple[list[Setting], int]:
    """The setting that begins at this argument, and how many arguments are done with."""
    if attached := _ATTACHED.match(argument):
        name = ours(_bare(attached[1]))
        return _if_sound(name, attached[1], attached[2], place, attached[1]), 1
    if flag := _FLAG.match(argument):
        name = ours(_bare(flag[1]))
        if flag[2]:
            return _if_sound(name, flag[1], flag[3], place, f"{flag[1]}="), 1
        if following is None or following == "--" or _begins_anew(following):
            return [], 1
        # Whatever follows a flag may be its value, also where the flag is not known: then it is left alone.
        return _if_sound(name, flag[1], following, place + 1, ""), 2
    if pair := _PAIR.match(argument):
        prefix = argument[: len(argument) - len(pair[2])]
        return _if_sound(ours(_bare(pair[1])), pair[1], pair[2], place, prefix), 1
    return [], 1


def _if_sound(name: str | None, spelling: str, text: str, place: int, prefix: str) -> list[Setting]:
    value = _value(name, text) if name is not None else None
    return [] if name is None or value is None else [Setting(name, spelling, value, place, prefix)]


def _value(name: str, text: str) -> Any:
    """None where it is not such a value: `--batch-size auto` and `--device $GPU` are nobody's business."""
    if name == "device":
        return text if _DEVICE.match(text) else None
    if name == "lr0":
        return float(text) if _NUMBER.match(text) else None
    return int(text) if _WHOLE.match(text) else None


def _begins_anew(argument: str) -> bool:
    return argument.startswith("-") and not _NUMBER.match(argument.lstrip("-"))


def _bare(spelling: str) -> str:
    return spelling.lstrip("-+").rstrip("=").lower().replace("-", "_")


def _written(spelling: str) -> str:
    """A flag that a plan names without dashes is still one, unless it says `name=`."""
    return spelling if is_spelling(spelling) else f"--{spelling}"


def _text(value: Any) -> str:
    return f"{value:.10g}" if isinstance(value, float) else str(value)


def _first_argument(command: Sequence[str]) -> int | None:
    """Where the training's own arguments begin: behind the script or module. None where a shell is given a text."""
    words = [word.rpartition("/")[2] for word in command]
    for place, word in enumerate(words):
        if word in _RUNS_TEXT and any(re.match(r"^-\w*c$", argument) for argument in command[place + 1 : place + 4]):
            return None
        if word.endswith(".py"):
            return place + 1
        before = words[place - 1] if place else ""
        if before == "-m" and word not in _LAUNCHERS:
            return place + 1
    return 1 if command else None

"""Writes the plan of `holdfast init`: for this dataset and this machine, with two stages and an explanation of every key."""

from __future__ import annotations

import os
import platform
import shutil
import sys
import textwrap
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from holdfast.frameworks.ultralytics import data_set
from holdfast.frameworks.ultralytics.disk_estimate import parse_scale
from holdfast.machine import this_machine
from holdfast.preflight.validate_plan import validate
from holdfast.schema.devices import DEVICES
from holdfast.schema.errors import DataSetInvalid, FolderNotWritable, UsageError
from holdfast.schema.plan_keys import BY_NAME, TOP
from holdfast.schema.shell_text import shell_quote
from holdfast.schema.units import size
from holdfast.storage.folder import working_folder, write_atomically, write_new
from holdfast.storage.plan.values import format_value
from holdfast.storage.safe_files import exists, is_file
from holdfast.supervisor.load_plan import open_plan

if TYPE_CHECKING:
    from collections.abc import Iterator

    from holdfast.frameworks.ultralytics.data_set import DataSet
    from holdfast.schema.plan_keys import Table

MODEL = "yolo11n.yaml"
"""The model of a new plan, unless another is given."""
MEMORY_PERCENT = 80
"""The percentage of memory that a training may use; the system and the supervisor need the rest."""
IMAGE_BYTES = {"n": 0.3e9, "t": 0.3e9, "s": 0.6e9, "m": 1.1e9, "b": 1.3e9, "c": 1.3e9, "l": 1.6e9, "e": 2e9, "x": 2.4e9}
"""Memory per image of 640 pixels in training in bytes, by model size: a starting point, not a guarantee."""
MAX_BATCH = 16
FEW_IMAGES = 2000
"""With fewer images than this, 64 images per update would give too few updates."""
EPOCHS = ((200, 200), (1000, 150), (5000, 100), (20_000, 60))
"""(Maximum number of images, epochs of both stages together): a small dataset is repeated more often."""
WIDTH = 100


@dataclass(frozen=True)
class MachineInfo:
    """The properties of this machine that a plan depends on."""

    memory: int
    cores: int
    accelerator: str | None
    """`mps`, `cuda` or None, detected without torch."""


@dataclass(frozen=True)
class PlanDraft:
    path: Path
    data: Path
    images: dict[str, int]
    classes: int
    device: str
    problems: list[str]
    notes: list[str]


def init(data: Path | None, *, model: str, out: Path, force: bool) -> PlanDraft:
    """Write a plan without overwriting a file (unless `force`), and return it with the problems to fix before it can run."""
    if out.is_symlink():
        raise UsageError(
            f"{out} is a link, and plans are not written through links.", next_step="specify the file itself with --out"
        )
    if exists(out) and not (force and is_file(out)):
        if force:
            raise UsageError(f"{out} is not a regular file.", next_step="specify another file with --out")
        raise UsageError(
            f"{out} already exists.", next_step="specify another file with --out, or overwrite it with --force"
        )
    chosen = data if data is not None else find_only_data_yaml(working_folder())
    folder = out.absolute().parent
    found = data_set.read(chosen, cwd=folder)
    machine = detect_machine()
    try:
        (write_atomically if force else write_new)(
            out, draft(found, machine, model=model, data_path=_relative_to(folder, chosen)), mode=0o666
        )
    except OSError as error:
        raise FolderNotWritable(
            f"Cannot write {out}: {error.strerror}.", next_step="specify another file with --out"
        ) from error
    result = validate(open_plan(out))
    return PlanDraft(
        path=out,
        data=chosen,
        images={split: len(images) for split, images in found.splits.items()},
        classes=len(found.names),
        device=_choose_device(machine),
        problems=result.problems,
        notes=result.notes,
    )


def find_only_data_yaml(folder: Path) -> Path:
    found = data_set.find_data_yamls(folder)
    if len(found) == 1:
        return found[0]
    if found:
        names = ", ".join(path.name for path in found[:5])
        raise UsageError(
            f"There are {len(found)} datasets in {folder}: {names}.",
            next_step=f"specify one of them: holdfast init {shell_quote(found[0].name)}",
        )
    raise DataSetInvalid(
        f"There is no dataset in {folder}: no .yaml file with train:, val: and names:.",
        next_step="specify one: holdfast init path/to/data.yaml",
    )


def detect_machine() -> MachineInfo:
    accelerator = None
    if sys.platform == "darwin" and platform.machine() == "arm64":
        accelerator = "mps"
    elif shutil.which("nvidia-smi") is not None:
        accelerator = "cuda"
    return MachineInfo(memory=this_machine().memory().limit, cores=os.cpu_count() or 1, accelerator=accelerator)


def draft(data: DataSet, machine: MachineInfo, *, model: str, data_path: str) -> str:
    """Return the text of the plan."""
    name = "".join(letter if letter.isalnum() or letter in "-_" else "-" for letter in data.path.stem).strip("-")
    gpu = DEVICES[machine.accelerator].title if machine.accelerator else "no known GPU"
    parts = [
        _format_comment(
            f"A plan for {data.path.name}: {len(data.splits['train']):,} training images, {len(data.splits['val']):,} "
            f"validation images, {len(data.names)} class{'es' if len(data.names) > 1 else ''}. Made for a machine with "
            f"{size(machine.memory)} of memory, {machine.cores} cores and {gpu}. Start it: "
            "holdfast run PLAN.toml"
        ),
        _format_comment(
            "Lines that start with # are comments. A comment with a key shows an optional setting in its place."
        ),
        "",
        _format_line("trainer", "ultralytics", "Holdfast starts Ultralytics itself"),
        _format_line("name", name or "training", "the run's folder is .holdfast/runs/NAME-N"),
        *_list_other_keys(TOP, {"trainer", "name", "command", "checkpoint", "resume_with"}),
        "",
        *_draft_settings(data, machine, model, data_path),
        "",
        *_draft_stages(data, machine, model),
        "",
        *_draft_tables(machine),
    ]
    return "\n".join(parts).rstrip() + "\n"


def _draft_settings(data: DataSet, machine: MachineInfo, model: str, data_path: str) -> Iterator[str]:
    images = len(data.splits["train"])
    batch = choose_batch(_choose_sizes(machine)[0], images, _allowed_memory(machine), model)
    yield _format_comment("Ultralytics settings for all stages: https://docs.ultralytics.com/usage/cfg")
    yield "[settings]"
    yield _format_line("model", model, _describe_model(model))
    yield _format_line("data", data_path, "" if Path(data_path).is_absolute() else "relative to this file's folder")
    yield _format_line("device", _choose_device(machine), _DEVICE_COMMENTS[machine.accelerator])
    yield _format_line("batch", batch, "images per batch; gradients are accumulated up to nbs")
    yield _format_line("nbs", _choose_nbs(images), "images per weight update, regardless of the batch")
    yield _format_line("seed", 0, "the same seed gives the same run")
    patience = max(10, choose_epochs(images)[0] // 3)
    yield _format_line("patience", patience, "stop a stage after this many epochs without a better result")
    if machine.accelerator == "cuda":
        yield _format_line("workers", min(8, machine.cores), "processes that load images")


def _draft_stages(data: DataSet, machine: MachineInfo, model: str) -> Iterator[str]:
    images = len(data.splits["train"])
    small, large = _choose_sizes(machine)
    first, second = choose_epochs(images)
    yield _format_comment(
        "Two stages: small images first, fast and with little memory; then larger images, starting from the best weights "
        "of the first stage."
    )
    yield "[[stages]]"
    yield _format_line("name", "small")
    yield "[stages.settings]"
    yield _format_line("epochs", first, f"about {-(-images // _choose_nbs(images)) * first:,} updates")
    yield _format_line("imgsz", small, "the longer side in pixels")
    yield _format_line("mosaic", 0.5, "probability of combining four images; more needs more memory")
    yield _format_line("close_mosaic", _choose_close_mosaic(first), "the last N epochs without mosaic")
    yield ""
    yield "[[stages]]"
    yield _format_line("name", "large")
    yield _format_line("from", "best", "start with the best weights of the previous stage")
    yield _format_line("skip_if_oom", True, "measure first, and skip the stage if it does not fit into memory")
    yield "[stages.settings]"
    yield _format_line("epochs", second)
    yield _format_line("imgsz", large, "larger images show smaller objects")
    yield _format_line("batch", choose_batch(large, images, _allowed_memory(machine), model))
    yield _format_line("optimizer", "AdamW", 'lr0 is only used if optimizer is not "auto"')
    yield _format_line("lr0", 0.0005, "small: the weights are already good")
    yield _format_line("warmup_epochs", 1.0)
    yield _format_line("warmup_bias_lr", 0.0, "the default, 0.1, is for SGD; with AdamW it destroys trained biases")
    yield _format_line("mosaic", 0.75)
    yield _format_line("close_mosaic", _choose_close_mosaic(second))
    yield _format_comment("[stages.gate]")
    yield from _list_other_keys(BY_NAME["stages.gate"], set())


def _draft_tables(machine: MachineInfo) -> Iterator[str]:
    allowed = size(_allowed_memory(machine))
    written = {
        "budget": (
            _format_line("attempts", 10, "per stage; planned restarts do not count"),
            _format_line("memory", f"{MEMORY_PERCENT}%", f'{allowed} of {size(machine.memory)}; also "12 GB"'),
        ),
        "policy": (_format_line("devices", _list_devices(machine), "tried in this order"),),
        "validation": (_format_line("every", 1, "validate every N epochs; the last epoch is always validated"),),
    }
    for name in (*written, "clear_cache", "environment", "rules", "hang"):
        lines = written.get(name, ())
        yield _format_comment(BY_NAME[name].description)
        yield f"[{name}]" if lines else f"# [{name}]"
        yield from lines
        yield from _list_other_keys(BY_NAME[name], {line.partition(" = ")[0] for line in lines})
        yield ""


def _choose_sizes(machine: MachineInfo) -> tuple[int, int]:
    return (416, 640) if machine.accelerator else (320, 416)


def _choose_nbs(images: int) -> int:
    return 64 if images > FEW_IMAGES else MAX_BATCH


def _allowed_memory(machine: MachineInfo) -> int:
    return machine.memory * MEMORY_PERCENT // 100


def choose_epochs(images: int) -> tuple[int, int]:
    """Return the epochs of the first and the second stage, in the ratio 3 to 2."""
    total = next((epochs for most, epochs in EPOCHS if images <= most), 40)
    return total * 3 // 5, total * 2 // 5


def choose_batch(imgsz: int, images: int, memory: int, model: str) -> int:
    """Return the largest power of two that probably fits into memory; a remedy halves it if it does not."""
    bytes_per_image = IMAGE_BYTES[parse_scale(model) or "s"] * (imgsz / 640) ** 2
    fitting = min(MAX_BATCH, (memory - 1e9) / bytes_per_image, images / 4)
    batch = 2
    while batch * 2 <= fitting:
        batch *= 2
    return batch


def _choose_close_mosaic(epochs: int) -> int:
    return min(10, max(1, epochs // 5))


_DEVICE_COMMENTS = {
    "mps": "the fastest device that computes correctly",
    "cuda": "or the index of a GPU, e.g. 0",
    None: 'or "cuda", "mps", "auto"',
}


def _choose_device(machine: MachineInfo) -> str:
    return {"mps": "auto", "cuda": "cuda"}.get(machine.accelerator or "", "cpu")


def _list_devices(machine: MachineInfo) -> list[str]:
    return [machine.accelerator, "cpu"] if machine.accelerator else ["cpu"]


def _describe_model(model: str) -> str:
    if model.endswith((".yaml", ".yml")):
        return "from scratch; the .pt file of the same name starts with trained weights (downloaded)"
    return "start with these weights"


def _relative_to(folder: Path, path: Path) -> str:
    """Return the path relative to the folder if it is below it, so that both can be moved together."""
    whole = path.absolute()
    return str(whole.relative_to(folder)) if whole.is_relative_to(folder) else str(whole)


def _format_line(key: str, value: object, description: str = "") -> str:
    text = f"{key} = {format_value(value, most=sys.maxsize)}"
    return f"{text:<30} # {description}" if description else text


def _format_comment(text: str) -> str:
    return "\n".join(textwrap.wrap(text, WIDTH, initial_indent="# ", subsequent_indent="# "))


def _list_other_keys(table: Table, excluded: set[str]) -> list[str]:
    """Return the keys that are not set as comments, each with an example and a description."""
    if table.keys is None:
        return [f"# {line}" for line in table.example.split("\n")]
    return [
        f"# {key.example:<28} # {_first_sentence(key.description)}" for key in table.keys if key.name not in excluded
    ]


def _first_sentence(description: str) -> str:
    return description.replace("`", "").partition(". ")[0].rstrip(".")

"""The plan that `holdfast init` writes: for this data set and this machine, in two stages, with every key explained."""

from __future__ import annotations

import os
import platform
import shutil
import sys
import textwrap
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from holdfast.diagnosis.units import size
from holdfast.machine import this_machine
from holdfast.preflight import yolo_data
from holdfast.preflight.disk_estimate import scale_of
from holdfast.preflight.validate_plan import survey
from holdfast.schema.errors import DataSetInvalid, FolderNotWritable, UsageError
from holdfast.schema.plan_keys import BY_NAME, TOP
from holdfast.schema.shell_text import shell_quoted
from holdfast.storage.folder import working_folder, write_atomically, write_new
from holdfast.storage.plan.values import format_value
from holdfast.storage.safe_files import exists, is_file
from holdfast.supervisor.load_plan import open_plan

if TYPE_CHECKING:
    from holdfast.preflight.yolo_data import DataSet
    from holdfast.schema.plan_keys import Table

SHARE = 80
"""Percent of the memory that a training may hold: the system and the supervisor need the rest."""
IMAGE_BYTES = {"n": 0.3e9, "t": 0.3e9, "s": 0.6e9, "m": 1.1e9, "b": 1.3e9, "c": 1.3e9, "l": 1.6e9, "e": 2e9, "x": 2.4e9}
"""Bytes that an image of 640 pixels takes in training, by the model's size: where to begin, not a promise."""
MAX_BATCH = 16
FEW = 2000
"""Images: with 64 of them to an update, fewer than this would give the weights too few updates."""
EPOCHS = ((200, 200), (1000, 150), (5000, 100), (20_000, 60))
"""Up to so many images -> epochs of both stages together; few images are seen more often."""
WIDTH = 100


@dataclass(frozen=True)
class MachineInfo:
    """As much of this machine as a plan depends on."""

    memory: int
    cores: int
    accelerator: str | None
    """`mps`, `cuda` or None, as far as that can be known without torch."""


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
    """Writes a plan beside nothing that is there already, and says what to mend before it can run."""
    if out.is_symlink():
        raise UsageError(
            f"{out} is a link: a plan is not written through it.", next_step="name the file itself with --out"
        )
    if exists(out) and not (force and is_file(out)):
        if force:
            raise UsageError(f"{out} is no ordinary file.", next_step="name another with --out")
        raise UsageError(f"{out} exists already.", next_step="name another with --out, or write over it with --force")
    chosen = data if data is not None else only_data_yaml(working_folder())
    folder = out.absolute().parent
    found = yolo_data.read(chosen, cwd=folder)
    here = this()
    try:
        (write_atomically if force else write_new)(
            out, draft(found, here, model=model, data_path=_as_seen_from(folder, chosen)), mode=0o666
        )
    except OSError as error:
        raise FolderNotWritable(
            f"{out} cannot be written: {error.strerror}.", next_step="name another file with --out"
        ) from error
    said = survey(open_plan(out))
    return PlanDraft(
        path=out,
        data=chosen,
        images={split: len(images) for split, images in found.splits.items()},
        classes=len(found.names),
        device=_device(here),
        problems=said.problems,
        notes=said.notes,
    )


def only_data_yaml(folder: Path) -> Path:
    found = yolo_data.data_yamls_in(folder)
    if len(found) == 1:
        return found[0]
    if found:
        names = ", ".join(path.name for path in found[:5])
        raise UsageError(
            f"There are {len(found)} data sets in {folder}: {names}.",
            next_step=f"name one: holdfast init {shell_quoted(found[0].name)}",
        )
    raise DataSetInvalid(
        f"There is no data set in {folder}: no .yaml with train:, val: and names: in it.",
        next_step="name one: holdfast init path/to/data.yaml",
    )


def this() -> MachineInfo:
    accelerator = None
    if sys.platform == "darwin" and platform.machine() == "arm64":
        accelerator = "mps"
    elif shutil.which("nvidia-smi") is not None:
        accelerator = "cuda"
    return MachineInfo(memory=this_machine().memory().limit, cores=os.cpu_count() or 1, accelerator=accelerator)


def draft(data: DataSet, here: MachineInfo, *, model: str, data_path: str) -> str:
    """The text of the plan."""
    images = len(data.splits["train"])
    small, large = (416, 640) if here.accelerator else (320, 416)
    first, second = epochs_for(images)
    nbs = 64 if images > FEW else MAX_BATCH
    allowed = here.memory * SHARE // 100
    name = "".join(letter if letter.isalnum() or letter in "-_" else "-" for letter in data.path.stem).strip("-")
    parts = [
        _comment(
            f"A plan for {data.path.name}: {images:,} images to train on, {len(data.splits['val']):,} to validate, "
            f"{len(data.names)} class{'es' if len(data.names) > 1 else ''}. Made for a machine with {size(here.memory)} of "
            f"memory, {here.cores} cores and {_NAMES[here.accelerator]}. Start it: holdfast run PLAN.toml"
        ),
        _comment(
            "Lines that begin with # are comments; those with a key show something that can be set, at its place."
        ),
        "",
        _line("trainer", "ultralytics", "Holdfast starts Ultralytics itself"),
        _line("name", name or "training", "the run's folder is .holdfast/runs/NAME-N"),
        *_rest(TOP, {"trainer", "name", "command", "checkpoint", "resume_with"}),
        "",
        _comment("Settings of Ultralytics for all stages: https://docs.ultralytics.com/usage/cfg"),
        "[settings]",
        _line("model", model, _about_model(model)),
        _line("data", data_path, "" if Path(data_path).is_absolute() else "counts from this file's folder"),
        _line("device", _device(here), _DEVICE[here.accelerator]),
        _line("batch", batch_for(small, images, allowed, model), "images at once; gradients are summed up to nbs"),
        _line("nbs", nbs, "images to one update of the weights, whatever the batch"),
        _line("seed", 0, "the same seed gives the same run again"),
        _line("patience", max(10, first // 3), "epochs without a better result after which a stage ends"),
        *([_line("workers", min(8, here.cores), "processes that load images")] if here.accelerator == "cuda" else []),
        "",
        _comment(
            "Two stages: small images first, quickly and with little memory; then larger ones, from the best weights "
            "of the first."
        ),
        "[[stages]]",
        _line("name", "small"),
        "[stages.settings]",
        _line("epochs", first, f"about {-(-images // nbs) * first:,} updates"),
        _line("imgsz", small, "pixels of the longer side"),
        _line("mosaic", 0.5, "how often four images are put together; more takes more memory"),
        _line("close_mosaic", _closing(first), "the last epochs see whole images"),
        "",
        "[[stages]]",
        _line("name", "large"),
        _line("from", "best", "begins with the best weights of the stage before"),
        _line("skip_if_oom", True, "measured first, and left out where memory does not allow it"),
        "[stages.settings]",
        _line("epochs", second),
        _line("imgsz", large, "larger images show smaller objects"),
        _line("batch", batch_for(large, images, allowed, model)),
        _line("optimizer", "AdamW", 'lr0 counts only where optimizer is not "auto"'),
        _line("lr0", 0.0005, "small steps: the weights are good already"),
        _line("warmup_epochs", 1.0),
        _line("warmup_bias_lr", 0.0, "its default, 0.1, is for SGD: it throws trained biases away under AdamW"),
        _line("mosaic", 0.75),
        _line("close_mosaic", _closing(second)),
        _comment("[stages.gate]"),
        *_rest(BY_NAME["stages.gate"], set()),
        "",
        _comment(BY_NAME["budget"].description),
        "[budget]",
        _line("attempts", 10, "starts of each stage; planned restarts cost none"),
        _line("memory", f"{SHARE}%", f'{size(allowed)} of {size(here.memory)}; also "12 GB"'),
        *_rest(BY_NAME["budget"], {"attempts", "memory"}),
        "",
        _comment(BY_NAME["policy"].description),
        "[policy]",
        _line("devices", _devices(here), "in the order in which they are tried"),
        *_rest(BY_NAME["policy"], {"devices"}),
        "",
        _comment(BY_NAME["validation"].description),
        "[validation]",
        _line("every", 1, "epochs from one to the next; the last epoch is always validated"),
        *_rest(BY_NAME["validation"], {"every"}),
    ]
    for name in ("clear_cache", "environment", "rules", "hang"):
        table = BY_NAME[name]
        parts += ["", _comment(table.description), f"# [{name}]", *_rest(table, set())]
    return "\n".join([*parts, ""])


def epochs_for(images: int) -> tuple[int, int]:
    """Of the first and of the second stage: three and two parts."""
    total = next((epochs for most, epochs in EPOCHS if images <= most), 40)
    return total * 3 // 5, total * 2 // 5


def batch_for(imgsz: int, images: int, memory: int, model: str) -> int:
    """The largest power of two that memory is likely to bear; the ladder halves it where that was wrong."""
    each = IMAGE_BYTES[scale_of(model) or "s"] * (imgsz / 640) ** 2
    fitting = min(MAX_BATCH, (memory - 1e9) / each, images / 4)
    batch = 2
    while batch * 2 <= fitting:
        batch *= 2
    return batch


def _closing(epochs: int) -> int:
    return min(10, max(1, epochs // 5))


_NAMES = {"mps": "a Mac's own GPU", "cuda": "an NVIDIA GPU", None: "no GPU that is known"}
_DEVICE = {
    "mps": "the fastest that was found to calculate rightly",
    "cuda": "or the number of a GPU, e.g. 0",
    None: 'or "cuda", "mps", "auto"',
}


def _device(here: MachineInfo) -> str:
    return {"mps": "auto", "cuda": "cuda"}.get(here.accelerator or "", "cpu")


def _devices(here: MachineInfo) -> list[str]:
    return [here.accelerator, "cpu"] if here.accelerator else ["cpu"]


def _about_model(model: str) -> str:
    if model.endswith((".yaml", ".yml")):
        return "from scratch; the .pt of the same name begins with trained weights, and is downloaded"
    return "begins with these weights"


def _as_seen_from(folder: Path, path: Path) -> str:
    """Relative where it lies below, so that the two can be moved together."""
    whole = path.absolute()
    return str(whole.relative_to(folder)) if whole.is_relative_to(folder) else str(whole)


def _line(key: str, value: object, description: str = "") -> str:
    text = f"{key} = {format_value(value, most=sys.maxsize)}"
    return f"{text:<30} # {description}" if description else text


def _comment(text: str) -> str:
    return "\n".join(textwrap.wrap(text, WIDTH, initial_indent="# ", subsequent_indent="# "))


def _rest(table: Table, but: set[str]) -> list[str]:
    """The keys that were not set, each with what it is for and an example, as comments."""
    if table.keys is None:
        return [f"# {line}" for line in table.example.split("\n")]
    return [f"# {key.example:<28} # {_first_sentence(key.description)}" for key in table.keys if key.name not in but]


def _first_sentence(description: str) -> str:
    return description.replace("`", "").partition(". ")[0].rstrip(".")

"""The environment of a dry run: the user's own, with the probe in it, trackers off, and all that is written in the scratch."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from holdfast.preflight import yolo_data
from holdfast.probe.holdfast_probe import protocol
from holdfast.process.python_command import python_path
from holdfast.schema.errors import HoldfastError
from holdfast.storage.safe_files import expand_user, is_file
from holdfast.supervisor.child_env import PROBE_FOLDER, overrides_for
from holdfast.supervisor.stage_command import stage_plan, stages_of

if TYPE_CHECKING:
    from collections.abc import Mapping

    from holdfast.preflight.checks.check import CheckContext
    from holdfast.preflight.dry_run.scratch import Scratch
    from holdfast.preflight.yolo_data import DataSet

OFF = {
    "WANDB_MODE": "disabled",
    "WANDB_SILENT": "true",
    "COMET_MODE": "disabled",
    "COMET_START_MODE": "disabled",
    "CLEARML_OFFLINE_MODE": "1",
    "NEPTUNE_MODE": "debug",
    "TRACKIO_MODE": "disabled",
    "DVCLIVE_TEST": "1",
    "RAY_DISABLE_REPORTING": "1",
    "PYTHONDONTWRITEBYTECODE": "1",
}
"""Trackers that a variable can switch off. TensorBoard has none: its files go to the scratch."""
MANY_IMAGES = 2000
"""From so many on, only some are looked at: Ultralytics reads every label before its first batch."""
USUAL_BATCH = 16
FEW = {"train": 96, "val": 16}


CACHES = ("~/.cache", "~/.nv", "~/.triton", "~/.torch", "~/.keras", "~/.config/Ultralytics", "~/.config/matplotlib")
"""Folders of tools, not of work: what they keep there is of use again, such as weights that were downloaded."""
CACHE_VARIABLES = (
    *(
        "XDG_CACHE_HOME",
        "TORCH_HOME",
        "HF_HOME",
        "HF_DATASETS_CACHE",
        "HF_HUB_CACHE",
        "TRANSFORMERS_CACHE",
        "KERAS_HOME",
    ),
    *("TRITON_CACHE_DIR", "TORCHINDUCTOR_CACHE_DIR", "TORCH_EXTENSIONS_DIR", "CUDA_CACHE_PATH", "NUMBA_CACHE_DIR"),
    *("MPLCONFIGDIR", "YOLO_CONFIG_DIR"),
)
"""What puts such folders elsewhere."""
INSTEAD = {
    "XDG_CACHE_HOME": "~/.cache",
    "CUDA_CACHE_PATH": "~/.nv",
    "TRITON_CACHE_DIR": "~/.triton",
    "YOLO_CONFIG_DIR": "~/.config/Ultralytics",
    "MPLCONFIGDIR": "~/.config/matplotlib",
}
"""Where such a folder is not there yet, it cannot be made in a home that is not written to: the variable names one in the scratch."""
TEMPORARY = ("/tmp", "/var/tmp")  # noqa: S108 - folders that programs name by themselves
SYSTEM = ("/dev", "/dev/shm", "/proc", "/sys")  # noqa: S108 - not files of anybody's


@dataclass(frozen=True)
class Writable:
    """Where a dry run may write, where it is confined."""

    folders: tuple[str, ...]
    """All of them."""
    caches: tuple[str, ...]
    variables: Mapping[str, str]
    """That lead tools to folders in the scratch."""


def find_writable(context: CheckContext, root: Path) -> Writable:
    """The scratch, the tools' own folders, and temporary folders that do not hold the training's own."""
    own, home = context.cwd.resolve(), expand_user("~")
    given = [Path(context.environment[name]) for name in CACHE_VARIABLES if context.environment.get(name)]
    caches = [
        str(folder)
        for folder in (*map(expand_user, CACHES), *given)
        if folder.is_absolute()
        and folder.is_dir()
        and not any(place.is_relative_to(folder.resolve()) for place in (own, home))
    ]
    variables = {}
    for name, usual in INSTEAD.items():
        if not context.environment.get(name) and not expand_user(usual).is_dir():
            variables[name] = str(root / "caches" / name.lower())
    temporary = [folder for folder in TEMPORARY if not own.is_relative_to(Path(folder).resolve())]
    return Writable((str(root), *caches, *temporary, *SYSTEM), tuple(caches), variables)


def get_command(context: CheckContext) -> list[str]:
    """The command, or that of a plan's first stage."""
    if context.plan is not None:
        return list(stage_plan(context.plan, stages_of(context.plan)[0]).command)
    return list(context.command)


def environment(
    context: CheckContext,
    root: Path,
    attempt: Path,
    asked: Mapping[str, Any],
    settings: Mapping[str, Any],
    confined: Writable | None = None,
) -> dict[str, str]:
    """`asked` is what the child is to do; `settings` are Ultralytics' over those of the command; `confined` where it can write, where
    that is not everywhere.
    """
    files: dict[str, Any] = {"scratch": [str(root)]}
    if confined is not None:
        files |= {"caches": confined.caches, "writable": confined.folders}
    kept = {name: value for name, value in context.environment.items() if not name.startswith("HOLDFAST_")}
    wishes = overrides_for(context.plan) if context.plan is not None else {}
    wishes["settings"] = {**(wishes.get("settings") or {}), **settings}
    temporary = root / "tmp"
    temporary.mkdir(exist_ok=True)
    return {
        **kept,
        **OFF,
        **(confined.variables if confined is not None else {}),
        "MLFLOW_TRACKING_URI": f"file://{root / 'mlruns'}",
        "TMPDIR": str(temporary),
        **python_path(context.environment, str(PROBE_FOLDER)),
        protocol.ATTEMPT: "1",
        protocol.ATTEMPT_DIR: str(attempt),
        protocol.LOCK: str(root / "lock"),
        protocol.PROBE_PATH: str(PROBE_FOLDER),
        protocol.ULTRALYTICS: json.dumps(wishes),
        protocol.CHECK: json.dumps({"files": files, **asked}),
    }


def ultralytics_settings(context: CheckContext, root: Path, scratch: Scratch) -> dict[str, Any]:
    """What it writes goes to the scratch, and it does not validate. Other trainings take no notice of these."""
    settings: dict[str, Any] = {
        "project": str(root / "results"),
        "name": "dry_run",
        "exist_ok": True,
        "plots": False,
        "val": False,
        "save": False,
        # A step for every batch: what is accumulated over sixteen would take sixteen times as long to see.
        "nbs": context.settings.get("batch", USUAL_BATCH),
    }
    few = _few_images(context, root / "images", scratch)
    return settings if few is None else {**settings, "data": str(few)}


def _few_images(context: CheckContext, folder: Path, scratch: Scratch) -> Path | None:
    """Links to some images of a large data set; None where it is small, or none that can be read."""
    if context.data is None or not context.uses_ultralytics:
        return None
    try:
        data = yolo_data.read(context.data, cwd=context.cwd)
    except (HoldfastError, OSError):
        return None
    if data.images < MANY_IMAGES or data.masks or data.keypoints is not None:
        return None
    for split, count in FEW.items():
        _link_some(data, split, count, folder)
    path = folder / "data.yaml"
    names = dict(enumerate(data.names))
    path.write_text(json.dumps({"path": str(folder), "train": "images/train", "val": "images/val", "names": names}))
    scratch.linked.append(f"{sum(FEW.values())} of {data.images:,} images")
    return path


def _link_some(data: DataSet, split: str, count: int, folder: Path) -> None:
    images = data.splits[split]
    image_folder, labels = folder / "images" / split, folder / "labels" / split
    image_folder.mkdir(parents=True)
    labels.mkdir(parents=True)
    for n in range(min(count, len(images))):
        image = images[n * len(images) // min(count, len(images))]
        name = yolo_data.link_name(n, image)
        (image_folder / name).symlink_to(image.absolute())
        label = yolo_data.label_path(image)
        if is_file(label):
            (labels / name).with_suffix(".txt").symlink_to(label.absolute())

"""Checks the Ultralytics part of a plan before any training starts: its settings, its model and its dataset."""

from __future__ import annotations

import difflib
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

from holdfast.frameworks.ultralytics import data_set, labels
from holdfast.frameworks.ultralytics.command import find_yolo, task_of
from holdfast.frameworks.ultralytics.install import find_install
from holdfast.frameworks.ultralytics.setting_values import SETTINGS
from holdfast.schema.errors import CommandNotRunnable, DataSetInvalid
from holdfast.schema.shell_text import shell_quote
from holdfast.storage.safe_files import exists, is_file, open_regular
from holdfast.supervisor.stage_command import stages_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from holdfast.frameworks.ultralytics.data_set import DataSet
    from holdfast.frameworks.ultralytics.install import UltralyticsInstall
    from holdfast.preflight.validate_plan import Validation
    from holdfast.schema.plan import Plan

BOX_TASKS = ("detect", "segment", "pose", "obb")
"""Tasks whose labels are text files."""
_DOWNLOADED = re.compile(r"(yolov(3|5|8|9|10)|yolo(11|12|26)|yolo_nas_|yoloe-|rtdetr-)[\w.-]*\.pt")
MAX_FAULT_SHARE = 0.05
"""Above this share, wrong labels are not an isolated mistake."""


def check_plan(plan: Plan, cwd: Path, result: Validation) -> dict[str, DataSet]:
    """Check the settings, the model and the data of all stages. Return the datasets."""
    install = find_install(plan.python)
    if install is None:
        result.problems.append(_explain_no_ultralytics(plan.python))
    sets: dict[str, DataSet] = {}
    models: set[str] = set()
    checked: set[str] = set()
    for number, stage in enumerate(stages_of(plan)):
        settings = {**plan.settings, **stage.settings}
        if install is not None and install.settings:
            result.problems.extend(_find_unknown_settings(settings, install, result.problems))
        model, data = str(settings.get("model", "")), str(settings.get("data", ""))
        if number and stage.start != "scratch" and (note := _warn_bias_warmup(settings, stage.name)):
            result.notes.append(note)
        if (number == 0 or stage.start == "scratch") and model not in models:
            models.add(model)
            _check_model(model, cwd, install, result)
        if data not in checked:
            checked.add(data)
            if (found := _check_data(data, settings, cwd, install, result)) is not None:
                sets[data] = found
    return sets


def _warn_bias_warmup(settings: Mapping[str, Any], stage: str) -> str | None:
    """Return a note if the bias warmup would destroy trained biases.

    With optimizer = "auto" Ultralytics sets warmup_bias_lr to 0 itself; with an explicit optimizer it does not.
    """
    adam = str(settings.get("optimizer", "auto")).lower() in ("adam", "adamax", "adamw", "nadam", "radam")
    rate = settings.get("warmup_bias_lr", SETTINGS["warmup_bias_lr"].default)
    if not adam or not settings.get("warmup_epochs", 1) or rate <= 10 * settings.get("lr0", SETTINGS["lr0"].default):
        return None
    return (
        f"Stage {stage} starts with trained weights, and Ultralytics warms up their biases from a learning rate of {rate:g} "
        "(warmup_bias_lr), which is meant for SGD: set warmup_bias_lr = 0.0 in its settings."
    )


def _explain_no_ultralytics(python: str | None) -> str:
    if python is not None and "/" in python and not is_file(Path(python)):
        return f"There is no interpreter at {python}: fix python in the plan, or remove it."
    if python is not None:
        return f"The interpreter {python} has no Ultralytics: {shell_quote(python)} -m pip install ultralytics, or specify another python."
    try:
        found = find_yolo(None)[0]
    except CommandNotRunnable as error:
        return f"{error.what} Next: {error.next_step}."
    return f"{found} exists, but the Ultralytics package that it belongs to does not: pip install ultralytics again."


def _find_unknown_settings(
    settings: Mapping[str, Any], install: UltralyticsInstall, result: list[str]
) -> Iterator[str]:
    for name in settings:
        sentence = f"The Ultralytics in {install.folder} does not support the setting {name}: remove it, or install a newer version."
        if name in SETTINGS and name not in install.settings and sentence not in result:
            yield sentence


def _check_model(model: str, cwd: Path, install: UltralyticsInstall | None, result: Validation) -> None:
    path = cwd / model
    if "://" in model:
        result.notes.append(
            f"The model {model} will be downloaded when the training starts, which needs a network connection."
        )
    elif is_file(path):
        if path.suffix == ".pt" and (fault := _find_checkpoint_fault(path)):
            result.problems.append(f"{path} {fault}: specify another model, or download the file again.")
    elif path.suffix in (".yaml", ".yml"):
        if install is not None and not install.ships_model(model):
            near = difflib.get_close_matches(model, [name.replace(".yaml", "n.yaml") for name in install.models], n=1)
            hint = f"did you mean {near[0]}?" if near else "fix model in [settings]."
            result.problems.append(
                f"There is no model {path}, and Ultralytics does not provide one with that name: {hint}"
            )
    elif (weights := data_set.find_ultralytics_folder("weights_dir")) is not None and is_file(weights / model):
        return
    elif _DOWNLOADED.fullmatch(path.name if path.suffix else f"{path.name}.pt"):
        result.notes.append(
            f"{path} does not exist: Ultralytics will download it when the training starts. Without a network connection, "
            f"train from scratch with {Path(model).stem}.yaml."
        )
    else:
        result.problems.append(f"There is no model {path}: fix model in [settings], or add the file.")


def _find_checkpoint_fault(path: Path) -> str | None:
    try:
        with open_regular(path) as file:
            head = file.read(64)
    except OSError as error:
        return f"cannot be read ({error.strerror})"
    if head.startswith(b"version https://git-lfs"):
        return "is only a Git LFS pointer, not the weights themselves (git lfs pull downloads them)"
    return None if head[:2] == b"PK" or head[:1] == b"\x80" else "is not a torch checkpoint"


def _check_data(
    data: str, settings: Mapping[str, Any], cwd: Path, install: UltralyticsInstall | None, result: Validation
) -> DataSet | None:
    path = cwd / data
    task = task_of(settings)
    if not exists(path) and ("://" in data or (install is not None and install.ships_data(data))):
        result.notes.append(f"Ultralytics downloads the dataset {data} if it is missing: it was not checked.")
        return None
    if exists(path) and (task == "classify" or path.suffix.lower() not in (".yaml", ".yml")):
        result.notes.append(f"The dataset {path} is not a data YAML file: it was not checked.")
        return None
    try:
        found = data_set.read(path, cwd=cwd)
    except DataSetInvalid as error:
        result.problems.extend(error.what.split("\n"))
        return None
    for split in ("train", "val"):
        _check_images(found, split, result)
        if task in BOX_TASKS and not found.masks:
            _check_labels(found, split, settings, result)
    return found


def _check_images(data: DataSet, split: str, result: Validation) -> None:
    chosen = labels.sample_evenly(data.splits[split], 500)
    gone = [image for image in chosen if not is_file(image)]
    if gone:
        result.problems.append(
            f"{len(gone)} of {len(chosen)} checked images for {split} do not exist, e.g. {data_set.shorten(gone[0])}: fix "
            f"the list in {data.path}."
        )


def _check_labels(data: DataSet, split: str, settings: Mapping[str, Any], result: Validation) -> None:
    sample = labels.sample_labels(
        data, split, oriented=task_of(settings) == "obb", any_class=bool(settings.get("single_cls"))
    )
    if not sample.checked:
        return
    if not sample.boxes and not sample.faults:
        first = data_set.label_path(data.splits[split][0])
        result.problems.append(
            f"No image for {split} has a label ({sample.counted} were checked): an expected label file is {first}, with a line "
            "`class x y width height` for each object."
        )
        return
    if 2 * sample.missing > sample.checked:
        result.notes.append(
            f"{sample.missing} images for {split} have no label file ({sample.counted} were checked): they count as background."
        )
    classes = [fault for fault in sample.faults if fault.class_id]
    others = [fault for fault in sample.faults if not fault.class_id]
    if classes:
        result.problems.append(
            f"{_count_files(len(classes))} for {split} {_have(len(classes))} a class that does not exist ({sample.counted} were "
            f"checked): {classes[0].label}, line {classes[0].line}, {classes[0].message}: fix names in {data.path}, or the "
            "labels; Ultralytics would skip these images."
        )
    if others:
        sentence = (
            f"{_count_files(len(others))} for {split} cannot be used ({sample.counted} were checked): {others[0].label}, line "
            f"{others[0].line}, {others[0].message}; Ultralytics would skip these images. Fix the labels."
        )
        (result.problems if len(others) > MAX_FAULT_SHARE * sample.checked else result.notes).append(sentence)


def _count_files(count: int) -> str:
    return f"{count} label files" if count > 1 else "A label file"


def _have(count: int) -> str:
    return "have" if count > 1 else "has"


def find_results_folder(plan: Plan, cwd: Path) -> Path:
    """Return the folder that Ultralytics writes its results to."""
    project = plan.settings.get("project")
    if not (isinstance(project, str) and Path(project).is_absolute()):
        runs = data_set.find_ultralytics_folder("runs_dir")
        return runs if runs is not None and runs.is_absolute() else cwd
    return Path(project)

"""What can be known before any training starts: whether the data, the model, the interpreter, the folders and the disk are
there. A problem keeps a plan from being carried out; a note is worth knowing. Each is one sentence with the next step.
"""

from __future__ import annotations

import difflib
import re
import shutil
import tempfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from holdfast.diagnosis.units import size
from holdfast.machine import this_machine
from holdfast.preflight import yolo_data, yolo_labels
from holdfast.preflight.disk_estimate import disk_need
from holdfast.process.python_discovery import find_imports, find_script
from holdfast.schema.errors import CommandNotRunnable, DataSetInvalid
from holdfast.schema.shell_text import shell_quoted
from holdfast.schema.ultralytics_settings import SETTINGS
from holdfast.storage.safe_files import exists, is_dir, is_file, open_regular
from holdfast.supervisor.load_plan import ultralytics_of
from holdfast.supervisor.stage_command import stages_of, yolo

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from holdfast.preflight.yolo_data import DataSet
    from holdfast.process.ultralytics_install import UltralyticsInstall
    from holdfast.schema.plan import Plan

BOX_TASKS = ("detect", "segment", "pose", "obb")
"""Tasks whose labels are text files."""
_TASK_OF = {
    "-seg": "segment",
    "-cls": "classify",
    "-pose": "pose",
    "-obb": "obb",
    "-sem": "semantic",
    "-depth": "depth",
}
_DOWNLOADED = re.compile(r"(yolov(3|5|8|9|10)|yolo(11|12|26)|yolo_nas_|yoloe-|rtdetr-)[\w.-]*\.pt")
MANY = 0.05
"""Above this share, wrong labels are no accident of one file."""


@dataclass(frozen=True)
class Survey:
    problems: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)


def context(plan: Plan) -> list[str]:
    """What keeps this plan from being carried out; empty where nothing does."""
    return survey(plan).problems


def survey(plan: Plan) -> Survey:
    said = Survey()
    cwd = Path(plan.cwd)
    if not is_dir(cwd):
        said.problems.append(f"The folder that the training is to run in, {cwd}, does not exist: mend cwd, or make it.")
        return said
    data: dict[str, DataSet] = {}
    if plan.trainer == "ultralytics":
        data = _ultralytics(plan, cwd, said)
    elif any({**plan.settings, **stage.settings} for stage in stages_of(plan)):
        said.notes.extend(_settings_unheard(plan, cwd))
    said.problems.extend(_folders(plan, cwd))
    said.problems.extend(_disk(plan, cwd, data))
    said.problems.extend(_memory(plan))
    return said


def _settings_unheard(plan: Plan, cwd: Path) -> Iterator[str]:
    """Settings reach a command that trains with Ultralytics, however it does; whether it does shows in its script alone."""
    for command in dict.fromkeys(tuple(stage.command or plan.command) for stage in stages_of(plan)):
        script = find_script(command, cwd)
        if script is not None and "ultralytics" not in find_imports(script):
            yield (
                f"{script} does not import Ultralytics itself: where nothing that it calls does, the [settings] of this "
                "plan do nothing. Write them into the command, and name its flags in [flags]."
            )


def _ultralytics(plan: Plan, cwd: Path, said: Survey) -> dict[str, DataSet]:
    home = ultralytics_of(plan.python)
    if home is None:
        said.problems.append(_no_ultralytics(plan.python))
    sets: dict[str, DataSet] = {}
    models: set[str] = set()
    looked: set[str] = set()
    for number, stage in enumerate(stages_of(plan)):
        settings = {**plan.settings, **stage.settings}
        if home is not None and home.settings:
            said.problems.extend(_not_of_this_version(settings, home, said.problems))
        model, data = str(settings.get("model", "")), str(settings.get("data", ""))
        if number and stage.start != "scratch" and (note := _biases_thrown(settings, stage.name)):
            said.notes.append(note)
        if (number == 0 or stage.start == "scratch") and model not in models:
            models.add(model)
            _model(model, cwd, home, said)
        if data not in looked:
            looked.add(data)
            if (found := _data(data, settings, cwd, home, said)) is not None:
                sets[data] = found
    return sets


def _biases_thrown(settings: Mapping[str, Any], stage: str) -> str | None:
    """Under optimizer = "auto" Ultralytics sets it to 0 by itself; where one is named, it does not."""
    adam = str(settings.get("optimizer", "auto")).lower() in ("adam", "adamax", "adamw", "nadam", "radam")
    rate = settings.get("warmup_bias_lr", SETTINGS["warmup_bias_lr"].default)
    if not adam or not settings.get("warmup_epochs", 1) or rate <= 10 * settings.get("lr0", SETTINGS["lr0"].default):
        return None
    return (
        f"Stage {stage} begins with trained weights, and Ultralytics warms their biases up from a learning rate of {rate:g} "
        "(warmup_bias_lr), which is made for SGD: write warmup_bias_lr = 0.0 into its settings."
    )


def _no_ultralytics(python: str | None) -> str:
    if python is not None and "/" in python and not is_file(Path(python)):
        return f"There is no interpreter at {python}: mend python in the plan, or leave it out."
    if python is not None:
        return f"The interpreter {python} has no Ultralytics: {shell_quoted(python)} -m pip install ultralytics, or name another python."
    try:
        found = yolo(None)[0]
    except CommandNotRunnable as error:
        return f"{error.what} Next: {error.next_step}."
    return f"{found} is there, but the Ultralytics that it belongs to is not: pip install ultralytics again."


def _not_of_this_version(settings: Mapping[str, Any], home: UltralyticsInstall, said: list[str]) -> Iterator[str]:
    for name in settings:
        sentence = (
            f"The Ultralytics in {home.folder} does not know the setting {name}: leave it out, or install a newer one."
        )
        if name in SETTINGS and name not in home.settings and sentence not in said:
            yield sentence


def _model(model: str, cwd: Path, home: UltralyticsInstall | None, said: Survey) -> None:
    path = cwd / model
    if "://" in model:
        said.notes.append(f"The model {model} will be downloaded when the training starts: the network must be there.")
    elif is_file(path):
        if path.suffix == ".pt" and (wrong := _no_checkpoint(path)):
            said.problems.append(f"{path} {wrong}: name another model, or get that file again.")
    elif path.suffix in (".yaml", ".yml"):
        if home is not None and not home.ships_model(model):
            near = difflib.get_close_matches(model, [name.replace(".yaml", "n.yaml") for name in home.models], n=1)
            hint = f"did you mean {near[0]}?" if near else "mend model in [settings]."
            said.problems.append(f"There is no model {path}, and Ultralytics ships none of that name: {hint}")
    elif (weights := yolo_data.own_folder("weights_dir")) is not None and is_file(weights / model):
        return
    elif _DOWNLOADED.fullmatch(path.name if path.suffix else f"{path.name}.pt"):
        said.notes.append(
            f"{path} does not exist: Ultralytics will download it when the training starts. Where there is no network, "
            f"train from scratch with {Path(model).stem}.yaml."
        )
    else:
        said.problems.append(f"There is no model {path}: mend model in [settings], or put the file there.")


def _no_checkpoint(path: Path) -> str | None:
    try:
        with open_regular(path) as file:
            head = file.read(64)
    except OSError as error:
        return f"cannot be read ({error.strerror})"
    if head.startswith(b"version https://git-lfs"):
        return "is only a pointer of Git LFS, not the weights themselves (git lfs pull fetches them)"
    return None if head[:2] == b"PK" or head[:1] == b"\x80" else "is no checkpoint of torch"


def _data(
    data: str, settings: Mapping[str, Any], cwd: Path, home: UltralyticsInstall | None, said: Survey
) -> DataSet | None:
    path = cwd / data
    task = task_of(settings)
    if not exists(path) and ("://" in data or (home is not None and home.ships_data(data))):
        said.notes.append(
            f"The data set {data} is one that Ultralytics downloads when it is not there: it was not looked at."
        )
        return None
    if exists(path) and (task == "classify" or path.suffix.lower() not in (".yaml", ".yml")):
        said.notes.append(f"The data set {path} is no data yaml: it was not looked at.")
        return None
    try:
        found = yolo_data.read(path, cwd=cwd)
    except DataSetInvalid as error:
        said.problems.extend(error.what.split("\n"))
        return None
    for split in ("train", "val"):
        _images(found, split, said)
        if task in BOX_TASKS and not found.masks:
            _labels(found, split, settings, said)
    return found


def _images(data: DataSet, split: str, said: Survey) -> None:
    chosen = yolo_labels.evenly(data.splits[split], 500)
    gone = [image for image in chosen if not is_file(image)]
    if gone:
        said.problems.append(
            f"{len(gone)} of {len(chosen)} images for {split} that were looked at do not exist, e.g. {yolo_data.short(gone[0])}: mend "
            f"the list that {data.path} names."
        )


def _labels(data: DataSet, split: str, settings: Mapping[str, Any], said: Survey) -> None:
    look = yolo_labels.look(
        data, split, oriented=task_of(settings) == "obb", any_class=bool(settings.get("single_cls"))
    )
    if not look.looked_at:
        return
    if not look.boxes and not look.wrong:
        first = yolo_data.label_of(data.splits[split][0])
        said.problems.append(
            f"No image for {split} has a label ({look.counted} were looked at): one would be {first}, with a line "
            "`class x y width height` for each object."
        )
        return
    if 2 * look.missing > look.looked_at:
        said.notes.append(
            f"{look.missing} images for {split} have no label file ({look.counted} were looked at): they count as empty."
        )
    classes = [wrong for wrong in look.wrong if wrong.class_id]
    others = [wrong for wrong in look.wrong if not wrong.class_id]
    if classes:
        said.problems.append(
            f"{_files(len(classes))} for {split} {_have(len(classes))} a class that does not exist ({look.counted} were "
            f"looked at): {classes[0].label}, line {classes[0].line}, {classes[0].message}: mend names in {data.path}, or the "
            "labels; Ultralytics would leave out those images."
        )
    if others:
        sentence = (
            f"{_files(len(others))} for {split} cannot be used ({look.counted} were looked at): {others[0].label}, line "
            f"{others[0].line}, {others[0].message}; Ultralytics would leave out those images. Mend the labels."
        )
        (said.problems if len(others) > MANY * look.looked_at else said.notes).append(sentence)


def _files(count: int) -> str:
    return f"{count} label files" if count > 1 else "A label file"


def _have(count: int) -> str:
    return "have" if count > 1 else "has"


def task_of(settings: Mapping[str, Any]) -> str:
    """The one that is set, else what the model's name says."""
    if settings.get("task"):
        return str(settings["task"])
    stem = Path(str(settings.get("model", ""))).stem
    return next((task for ending, task in _TASK_OF.items() if stem.endswith(ending)), "detect")


def _folders(plan: Plan, cwd: Path) -> Iterator[str]:
    for folder in dict.fromkeys([cwd, _results(plan, cwd)]):
        try:
            with tempfile.TemporaryFile(dir=_existing(folder)) as file:
                file.write(b"x")
        except OSError as error:
            yield f"{folder} cannot be written ({error.strerror}): give yourself the right to, or set another project."


def _results(plan: Plan, cwd: Path) -> Path:
    """Where Ultralytics writes what it makes."""
    project = plan.settings.get("project")
    if plan.trainer == "ultralytics" and not (isinstance(project, str) and Path(project).is_absolute()):
        runs = yolo_data.own_folder("runs_dir")
        return runs if runs is not None and runs.is_absolute() else cwd
    return Path(project) if isinstance(project, str) else cwd


def _existing(folder: Path) -> Path:
    return next(place for place in (folder, *folder.absolute().parents) if is_dir(place))


def _disk(plan: Plan, cwd: Path, data: Mapping[str, DataSet]) -> Iterator[str]:
    need = disk_need(plan, cwd, data)
    total = sum(need.values())
    told = set()
    for folder in (cwd, _results(plan, cwd)):
        place = _existing(folder)
        free = shutil.disk_usage(place).free
        device = place.stat().st_dev
        if free < total and device not in told:
            told.add(device)
            parts = ", ".join(f"{size(amount)} {what}" for what, amount in need.items())
            yield (
                f"The disk of {folder} has {size(free)} free, and this plan will write about {size(total)} ({parts}): make "
                "room, or move the plan to another disk."
            )


def _memory(plan: Plan) -> Iterator[str]:
    machine = this_machine().memory()
    if plan.budget.memory is not None and plan.budget.memory > machine.limit:
        yield (
            f"The budget allows {size(plan.budget.memory)} of memory, but there are only {size(machine.limit)} "
            f'({machine.limited_by}): write memory = "80%".'
        )

"""A short trial of a training: two short epochs with their validations for real, in a scratch folder, and what they took.

The images are links to the user's own, so that nothing of theirs is written to (Ultralytics keeps caches beside labels). The trial is
supervised like any run, in a process of its own, and what it measured is read from its journal. Its epochs are so long that the
images that mosaic keeps are all there, and where the plan closes mosaic before its end, the second epoch has none.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
import time
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from holdfast.diagnosis.units import size as amount
from holdfast.machine import this_machine
from holdfast.preflight import yolo_data
from holdfast.preflight.short_run_metrics import ShortRunMetrics, ShortRunTiming, compute_metrics
from holdfast.process.helper_processes import helpers
from holdfast.process.python_command import program
from holdfast.schema import events
from holdfast.schema.errors import DataSetInvalid, HoldfastError
from holdfast.schema.plan import Budget, Policy, from_toml, to_toml
from holdfast.storage.folder import RunFolder, create
from holdfast.storage.journal import replay
from holdfast.supervisor.stage_command import ultralytics_command

if TYPE_CHECKING:
    from collections.abc import Callable

    from holdfast.schema.plan import Plan

EPOCHS = 2
MAX_S = 180.0
SAMPLE_S = 0.1
LOOK_S = 0.25
LEFT = 0.04
"""Of the machine's memory: when less is left, a trial is ended before the system ends something."""
GRACE_S = 2.0
ENDS_S = 8.0
"""Between asking a trial to end and ending it."""
DEFAULT_BATCH, DEFAULT_SIZE, DEFAULT_EPOCHS, DEFAULT_CLOSE = 16, 640, 100, 10
"""What Ultralytics takes where the plan does not say."""
PROGRAM = "import sys; from holdfast.preflight.short_run import main; sys.exit(main(*sys.argv[1:]))"
"""Not `-m`, which would import from the folder of the training."""
_BESIDE = (".jpg", ".png", ".csv", ".yaml", ".jsonl", ".log")


@dataclass(frozen=True)
class Length:
    batches: int
    """In an epoch."""
    validated: int
    """Images at the least, where there are so many."""
    validation_batches: int


FULL = Length(batches=8, validated=64, validation_batches=3)  # Ultralytics keeps the images of 8 batches for mosaic
BRIEF = Length(batches=4, validated=4, validation_batches=1)


@dataclass(frozen=True)
class Measurement:
    batch: int
    size: int
    """Of an image, in pixels."""
    training: int = 0
    """Bytes that all of its processes held at most while it trained, with the driver's where that is the same memory."""
    validation: int = 0
    """The same while it validated, and at its end."""
    wall: ShortRunTiming = field(default_factory=ShortRunTiming)
    processor: ShortRunTiming = field(default_factory=ShortRunTiming)
    """The same in seconds that its processes computed."""
    images: int = 0
    """That it trained with."""
    validated: int = 0
    """Images that it validated with; 0 where it did not come to that."""
    workers: int = 0
    closes: bool = True
    """Whether the second epoch was without mosaic."""
    device: tuple[str, int, int | None] | None = None
    """A device with memory of its own: its name, what was reserved there at most, what it can hold."""
    snapshot: int = 0
    """Bytes on disk."""
    checkpoint: int = 0
    beside: int = 0
    """Bytes of plots, tables and logs that it wrote."""
    suspect: str = ""
    """What a rule found to be a proof that it does not learn, where one did."""
    failed: str = ""
    """Why there are no figures, where there are none."""
    seconds: float = 0.0
    """That the trial took."""

    @property
    def peak(self) -> int:
        return max(self.training, self.validation)

    @property
    def load(self) -> float:
        """What memory and time grow with: the pixels of a batch."""
        return float(self.batch) * self.size * self.size


@dataclass(frozen=True)
class ShortRunRequest:
    """What of a stage's settings a trial is made from."""

    batch: int
    size: int
    epochs: int
    close_mosaic: int

    @property
    def with_mosaic(self) -> int:
        """Epochs before it is closed."""
        return max(0, self.epochs - self.close_mosaic) if self.close_mosaic else self.epochs

    @property
    def closes(self) -> bool:
        """It has epochs with mosaic, and then some without."""
        return 0 < self.with_mosaic < self.epochs


def make_request(settings: dict[str, Any]) -> ShortRunRequest:
    batch = settings.get("batch", DEFAULT_BATCH)
    size = settings.get("imgsz", DEFAULT_SIZE)
    return ShortRunRequest(
        batch=batch if isinstance(batch, int) and batch > 0 else DEFAULT_BATCH,
        size=int(max(size) if isinstance(size, list) else size),
        epochs=int(settings.get("epochs") or DEFAULT_EPOCHS),
        close_mosaic=int(settings.get("close_mosaic", DEFAULT_CLOSE)),
    )


def measure(
    plan: Plan,
    *,
    seconds: float = MAX_S,
    brief: bool = False,
    notify: Callable[[str], None] = lambda _: None,
    **settings: Any,
) -> Measurement:
    """Try this plan (of one stage) with these settings over its own. Never raises: what went wrong is in `failed`.

    `brief`: for nothing but the time of a batch.
    """
    over = {**plan.settings, **plan.overrides, **settings}
    asked = make_request(over)
    began = time.monotonic()
    try:
        with helpers.scratch() as (scratch, mark):
            length = BRIEF if brief else FULL
            return _tried(plan, over, asked, length, scratch, mark, began + seconds, notify)
    except (OSError, HoldfastError) as error:
        return Measurement(asked.batch, asked.size, failed=_one_line(str(error)), seconds=time.monotonic() - began)


def _tried(
    plan: Plan,
    over: dict[str, Any],
    asked: ShortRunRequest,
    length: Length,
    scratch: Path,
    mark: dict[str, str],
    deadline: float,
    notify: Callable[[str], None],
) -> Measurement:
    began = time.monotonic()
    data = yolo_data.read(_path(plan, str(over.get("data", ""))), cwd=Path(plan.cwd))
    if data.masks:
        raise DataSetInvalid("its labels are images of their own (masks): only boxes, polygons and poses are tried out")
    train, val = len(data.splits["train"]), len(data.splits["val"])
    batches = min(length.batches, max(1, -(-train // asked.batch)))
    wanted = {
        "train": min(train, batches * asked.batch) if train >= asked.batch else asked.batch,
        "val": min(val, max(length.validated, 2 * asked.batch * length.validation_batches)),
    }
    few = link_few_images(data, scratch / "data", wanted)
    short = _short(plan, over, asked, few, scratch)
    path = scratch / "trial.toml"
    path.write_text(to_toml(short))
    run = create([], root=scratch, folder=scratch / "run")
    why = _carried_out(path, run, scratch / "said", plan.cwd, mark, deadline, notify)
    told = [entry.event for entry in replay(run)] if run.journal.exists() else []
    figures = compute_metrics(told, alike=not asked.closes)
    took = round(time.monotonic() - began, 1)
    if figures is None:
        return Measurement(asked.batch, asked.size, failed=why or _last_words(told, scratch / "said"), seconds=took)
    if why and figures.batches < length.batches // 2:
        said = f"{why}: {figures.batches} batches in {took:.0f} s"
        return Measurement(asked.batch, asked.size, failed=said, seconds=took)
    ended = next((event for event in told if isinstance(event, events.AttemptEnded)), None)
    if ended is not None and not why and ended.code != 0:
        return Measurement(asked.batch, asked.size, failed=_last_words(told, scratch / "said"), seconds=took)
    real = next((event.values for event in told if isinstance(event, events.Settings)), {})
    measured = _as_measured(figures, asked, wanted, real, took, _written(scratch))
    return replace(measured, suspect=_suspect(told))


def _as_measured(
    figures: ShortRunMetrics,
    asked: ShortRunRequest,
    wanted: dict[str, int],
    real: dict[str, Any],
    took: float,
    beside: int,
) -> Measurement:
    batch, workers = real.get("batch"), real.get("workers")
    return Measurement(
        batch=batch if isinstance(batch, int) and batch > 0 else asked.batch,
        size=asked.size,
        training=figures.training,
        validation=figures.validation,
        wall=figures.wall,
        processor=figures.processor,
        images=wanted["train"],
        validated=wanted["val"] if figures.wall.validation else 0,
        workers=workers if isinstance(workers, int) else 0,
        closes=asked.closes,
        device=figures.device,
        snapshot=figures.snapshot,
        checkpoint=figures.checkpoint,
        beside=beside,
        seconds=took,
    )


def _suspect(told: list[events.AnyEvent]) -> str:
    found = [event.finding for event in told if isinstance(event, events.FindingMade)]
    return next((f"{one.message} ({one.rule})" for one in found if one.severity == "fatal"), "")


def _written(scratch: Path) -> int:
    files = [path for folder in ("results", "run") for path in (scratch / folder).rglob("*") if path.is_file()]
    return sum(path.stat().st_size for path in files if path.suffix in _BESIDE)


def _short(plan: Plan, over: dict[str, Any], asked: ShortRunRequest, data: Path, scratch: Path) -> Plan:
    """Two epochs as the plan has them; nobody is told of them, nothing is changed and nothing is tried again."""
    closed = {0: EPOCHS, asked.epochs: 0}.get(asked.with_mosaic, 1)
    settings = {
        **over,
        "data": str(data),
        "model": _existing(plan, str(over.get("model", "yolo11n.yaml"))),
        "epochs": EPOCHS,
        "close_mosaic": closed,
        "project": str(scratch / "results"),
        "name": "trial",
        "patience": 100,
    }
    settings.pop("time", None)
    settings.pop("fraction", None)
    settings.pop("resume", None)
    settings.pop("save_dir", None)
    if settings.get("device") in ("auto", "", None):
        settings.pop("device", None)
    return msgspec.structs.replace(
        plan,
        command=ultralytics_command(plan.python, settings),
        settings=settings,
        overrides={},
        stages=[],
        budget=Budget(attempts=1),
        policy=Policy(planned_restarts=False),
        validation=msgspec.structs.replace(plan.validation, every=1, on_cpu="never"),
        on_finding="warn",
        grace_s=GRACE_S,
        sample_every_s=SAMPLE_S,
        on_event=None,
        checkpoint=None,
        name="trial",
    )


def _carried_out(
    path: Path,
    run: RunFolder,
    said: Path,
    cwd: str,
    mark: dict[str, str],
    deadline: float,
    notify: Callable[[str], None],
) -> str:
    """Why it was ended before its end; empty where it was not."""
    machine = this_machine()
    why = ""
    with said.open("wb") as output:
        process = subprocess.Popen(
            program([sys.executable], PROGRAM, str(path), str(run.path)),
            cwd=cwd,
            env={**os.environ, **mark},
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            start_new_session=True,
        )
        try:
            while process.poll() is None and not why:
                time.sleep(LOOK_S)
                memory = machine.memory()
                if time.monotonic() > deadline:
                    why = "it had not ended in time"
                elif memory.available < LEFT * memory.limit:
                    why = f"it was ended because only {amount(memory.available)} of memory were left"
                else:
                    notify("a short trial")
        finally:
            _end(process)
    return why


def _end(process: subprocess.Popen[bytes]) -> None:
    """The supervisor ends its training; where it does not, all of them are ended."""
    if process.poll() is None:
        process.send_signal(signal.SIGTERM)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(ENDS_S)
    if process.poll() is None:
        with contextlib.suppress(OSError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def _last_words(told: list[events.AnyEvent], said: Path) -> str:
    ended = next((event for event in told if isinstance(event, events.AttemptEnded)), None)
    if ended is not None and ended.last_words:
        return _one_line(ended.last_words[-1])
    if ended is not None and ended.signal is not None:
        return f"it was ended by {ended.signal}"
    lines = [line for line in said.read_text(errors="replace").splitlines() if line.strip()]
    return _one_line(lines[-1]) if lines else "it never made a step"


def _one_line(text: str) -> str:
    return " ".join(text.split())[:400]


def link_few_images(data: yolo_data.DataSet, folder: Path, wanted: dict[str, int]) -> Path:
    """A data set of links to some images of each split, evenly taken; where there are too few, some come twice."""
    for split, count in wanted.items():
        images = data.splits[split]
        image_folder, labels = folder / "images" / split, folder / "labels" / split
        image_folder.mkdir(parents=True)
        labels.mkdir(parents=True)
        for n in range(count):
            image = images[n * len(images) // count]
            name = yolo_data.link_name(n, image)
            (image_folder / name).symlink_to(image.absolute())
            label = yolo_data.label_path(image)
            if label.is_file():
                (labels / name).with_suffix(".txt").symlink_to(label.absolute())
    path = folder / "data.yaml"
    values: dict[str, Any] = {"path": str(folder), "train": "images/train", "val": "images/val"}
    values["names"] = dict(enumerate(data.names))
    if data.keypoints is not None:
        values["kpt_shape"] = list(data.keypoints)
    path.write_text(json.dumps(values))  # JSON is YAML, and quotes names as they must be
    return path


def _path(plan: Plan, name: str) -> Path:
    path = Path(name)
    return path if path.is_absolute() else Path(plan.cwd) / path


def _existing(plan: Plan, name: str) -> str:
    """A file of the user's by its full path; anything else is Ultralytics' to find."""
    path = _path(plan, name)
    return os.fspath(path) if path.is_file() else name


def main(plan: str, folder: str) -> int:
    """Supervise one trial; nothing is shown, checked or reported."""
    from holdfast.supervisor import supervisor  # noqa: PLC0415 - only this process supervises

    threading.Thread(target=_ends_with, args=(os.getppid(),), daemon=True).start()
    return supervisor.start(RunFolder(Path(folder)), from_toml(Path(plan).read_text())).exit_status


def _ends_with(parent: int) -> None:
    while os.getppid() == parent:
        time.sleep(1.0)
    os.kill(os.getpid(), signal.SIGTERM)

"""A short run of a training: two short epochs with validation in a scratch folder, and their measurements.

The images are links to the user's own, so that nothing is written next to them (Ultralytics keeps caches next to labels). The short run is
supervised like any run, in a separate process, and its measurements are read from its journal. Its epochs are long enough for mosaic to
fill its image buffer. If the plan closes mosaic before its end, the second epoch has no mosaic.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

from holdfast.diagnosis.rules import by_id
from holdfast.frameworks.ultralytics import data_set
from holdfast.frameworks.ultralytics.command import build_command
from holdfast.frameworks.ultralytics.short_run_metrics import ShortRunMetrics, ShortRunTiming, compute_metrics
from holdfast.machine import this_machine
from holdfast.process.helper_processes import helpers
from holdfast.process.python_command import program
from holdfast.schema import events
from holdfast.schema.errors import DataSetInvalid, HoldfastError
from holdfast.schema.exits import describe_exit
from holdfast.schema.plan import Budget, Policy, from_toml, to_toml
from holdfast.schema.units import size as amount
from holdfast.storage.folder import RunFolder, create
from holdfast.storage.journal import replay

if TYPE_CHECKING:
    from collections.abc import Callable

    from holdfast.schema.plan import Plan

EPOCHS = 2
MAX_S = 180.0
SAMPLE_S = 0.1
POLL_S = 0.25
MIN_FREE = 0.04
"""A share of the machine's memory. When less is left, the short run is stopped before the system kills a process."""
GRACE_S = 2.0
STOP_S = 8.0
"""The time between asking a short run to stop and killing it."""
DEFAULT_BATCH, DEFAULT_SIZE, DEFAULT_EPOCHS, DEFAULT_CLOSE = 16, 640, 100, 10
"""The defaults of Ultralytics."""
PROGRAM = "import sys; from holdfast.frameworks.ultralytics.short_run import main; sys.exit(main(*sys.argv[1:]))"
"""Not `-m`, which would import modules from the folder of the training."""
_ALLOCATION_FAILED = re.compile(r"bad_alloc|Cannot allocate memory")
_OUTPUT_SUFFIXES = (".jpg", ".png", ".csv", ".yaml", ".jsonl", ".log")


@dataclass(frozen=True)
class Length:
    batches: int
    """Per epoch."""
    validated: int
    """The minimum number of validation images, if there are that many."""
    validation_batches: int


FULL = Length(batches=8, validated=64, validation_batches=3)  # Ultralytics keeps the images of 8 batches for mosaic
BRIEF = Length(batches=4, validated=4, validation_batches=1)


@dataclass(frozen=True)
class Measurement:
    batch: int
    size: int
    """The image size in pixels."""
    training: int = 0
    """Peak memory of all its processes during training in bytes, including the driver's if that is the same memory."""
    validation: int = 0
    """The same during validation and at the end."""
    wall: ShortRunTiming = field(default_factory=ShortRunTiming)
    processor: ShortRunTiming = field(default_factory=ShortRunTiming)
    """The same in CPU time of its processes."""
    images: int = 0
    """The number of training images."""
    validated: int = 0
    """The number of validation images; 0 if there was no validation."""
    workers: int = 0
    closes: bool = True
    """Whether the second epoch was without mosaic."""
    device: tuple[str, int, int | None] | None = None
    """A device with its own memory: its name, the peak of reserved memory, its capacity."""
    snapshot: int = 0
    """Bytes on disk."""
    checkpoint: int = 0
    beside: int = 0
    """Bytes of plots, tables and logs."""
    suspect: str = ""
    """A fatal finding of a rule that shows that the training does not learn, if there is one."""
    failed: str = ""
    """Why there are no figures; empty if there are."""
    out_of_memory: bool = False
    """Whether it failed because memory ran out."""
    seconds: float = 0.0
    """The duration of the short run."""

    @property
    def peak(self) -> int:
        return max(self.training, self.validation)

    @property
    def load(self) -> float:
        """The pixels of a batch, which memory and time are proportional to."""
        return float(self.batch) * self.size * self.size


class EarlyStop(NamedTuple):
    why: str = ""
    out_of_memory: bool = False


@dataclass(frozen=True)
class ShortRunRequest:
    """The settings of a stage that a short run needs."""

    batch: int
    size: int
    epochs: int
    close_mosaic: int

    @property
    def with_mosaic(self) -> int:
        """Epochs before mosaic is closed."""
        return max(0, self.epochs - self.close_mosaic) if self.close_mosaic else self.epochs

    @property
    def closes(self) -> bool:
        """Whether there are epochs with mosaic, followed by epochs without it."""
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
    """Make a short run of this plan (with one stage) and override its settings with `settings`. Never raises: `failed` contains the error.

    `brief`: measure only the time of a batch.
    """
    merged = {**plan.settings, **plan.overrides, **settings}
    request = make_request(merged)
    began = time.monotonic()
    try:
        with helpers.scratch() as (scratch, mark):
            length = BRIEF if brief else FULL
            return _run_short(plan, merged, request, length, scratch, mark, began + seconds, notify)
    except (OSError, HoldfastError) as error:
        return Measurement(request.batch, request.size, failed=_one_line(str(error)), seconds=time.monotonic() - began)


def _run_short(
    plan: Plan,
    merged: dict[str, Any],
    request: ShortRunRequest,
    length: Length,
    scratch: Path,
    mark: dict[str, str],
    deadline: float,
    notify: Callable[[str], None],
) -> Measurement:
    began = time.monotonic()
    data = data_set.read(_resolve(plan, str(merged.get("data", ""))), cwd=Path(plan.cwd))
    if data.masks:
        raise DataSetInvalid("its labels are mask images: short runs support only boxes, polygons and poses")
    train, val = len(data.splits["train"]), len(data.splits["val"])
    batches = min(length.batches, max(1, -(-train // request.batch)))
    wanted = {
        "train": min(train, batches * request.batch) if train >= request.batch else request.batch,
        "val": min(val, max(length.validated, 2 * request.batch * length.validation_batches)),
    }
    few = link_few_images(data, scratch / "data", wanted)
    short = _shorten_plan(plan, merged, request, few, scratch)
    path = scratch / "trial.toml"
    path.write_text(to_toml(short))
    run = create([], root=scratch, folder=scratch / "run")
    stopped = _run_supervised(path, run, scratch / "output.log", plan.cwd, mark, deadline, notify)
    recorded = [entry.event for entry in replay(run)] if run.journal.exists() else []
    figures = compute_metrics(recorded, alike=not request.closes)
    elapsed = round(time.monotonic() - began, 1)
    ended = next((event for event in recorded if isinstance(event, events.AttemptEnded)), None)
    failed, out_of_memory = "", stopped.out_of_memory
    if stopped.why and figures is not None and figures.batches < length.batches // 2:
        failed = f"{stopped.why}: {figures.batches} batches in {elapsed:.0f} s"
    elif stopped.why and figures is None:
        failed = stopped.why
    elif figures is None or (ended is not None and not stopped.why and ended.code != 0):
        failed, out_of_memory = _describe_failure(ended, scratch / "output.log"), _ran_out_of_memory(ended, recorded)
    if figures is None or failed:
        return Measurement(request.batch, request.size, failed=failed, out_of_memory=out_of_memory, seconds=elapsed)
    real = next((event.values for event in recorded if isinstance(event, events.Settings)), {})
    measured = _make_measurement(figures, request, wanted, real, elapsed, _count_written(scratch))
    return replace(measured, suspect=_find_suspect(recorded))


def _make_measurement(
    figures: ShortRunMetrics,
    request: ShortRunRequest,
    wanted: dict[str, int],
    real: dict[str, Any],
    elapsed: float,
    beside: int,
) -> Measurement:
    batch, workers = real.get("batch"), real.get("workers")
    return Measurement(
        batch=batch if isinstance(batch, int) and batch > 0 else request.batch,
        size=request.size,
        training=figures.training,
        validation=figures.validation,
        wall=figures.wall,
        processor=figures.processor,
        images=wanted["train"],
        validated=wanted["val"] if figures.wall.validation else 0,
        workers=workers if isinstance(workers, int) else 0,
        closes=request.closes,
        device=figures.device,
        snapshot=figures.snapshot,
        checkpoint=figures.checkpoint,
        beside=beside,
        seconds=elapsed,
    )


def _ran_out_of_memory(ended: events.AttemptEnded | None, recorded: list[events.AnyEvent]) -> bool:
    found = {e.finding.rule for e in recorded if isinstance(e, events.FindingMade) and e.finding.severity == "fatal"}
    lines = ended.last_lines if ended is not None else []
    killed = ended is not None and ended.signal == "SIGKILL"
    about_memory = any("memory" in by_id()[rule].charts for rule in found if rule in by_id())
    return killed or about_memory or any(_ALLOCATION_FAILED.search(line) for line in lines)


def _find_suspect(recorded: list[events.AnyEvent]) -> str:
    found = [event.finding for event in recorded if isinstance(event, events.FindingMade)]
    return next((f"{finding.message} ({finding.rule})" for finding in found if finding.severity == "fatal"), "")


def _count_written(scratch: Path) -> int:
    files = [path for folder in ("results", "run") for path in (scratch / folder).rglob("*") if path.is_file()]
    return sum(path.stat().st_size for path in files if path.suffix in _OUTPUT_SUFFIXES)


def _shorten_plan(plan: Plan, merged: dict[str, Any], request: ShortRunRequest, data: Path, scratch: Path) -> Plan:
    """Return a plan with two epochs, without notifications, remedies and retries."""
    closed = {0: EPOCHS, request.epochs: 0}.get(request.with_mosaic, 1)
    settings = {
        **merged,
        "data": str(data),
        "model": _find_model(plan, str(merged.get("model", "yolo11n.yaml"))),
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
        command=build_command(plan.python, settings),
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


def _run_supervised(
    path: Path,
    run: RunFolder,
    log: Path,
    cwd: str,
    mark: dict[str, str],
    deadline: float,
    notify: Callable[[str], None],
) -> EarlyStop:
    """Run the plan in a supervisor process. Return why it was stopped early, if it was."""
    machine = this_machine()
    stopped = EarlyStop()
    with log.open("wb") as output:
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
            while process.poll() is None and not stopped.why:
                time.sleep(POLL_S)
                memory = machine.memory()
                if time.monotonic() > deadline:
                    stopped = EarlyStop("it did not finish in time")
                elif memory.available < MIN_FREE * memory.limit:
                    why = f"it was stopped because only {amount(memory.available)} of memory was left"
                    stopped = EarlyStop(why, out_of_memory=True)
                else:
                    notify("a short run")
        finally:
            _stop(process)
    return stopped


def _stop(process: subprocess.Popen[bytes]) -> None:
    """Stop the supervisor, which stops its training. If that takes too long, kill both."""
    if process.poll() is None:
        process.send_signal(signal.SIGTERM)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(STOP_S)
    if process.poll() is None:
        with contextlib.suppress(OSError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def _describe_failure(ended: events.AttemptEnded | None, output: Path) -> str:
    if ended is not None and ended.last_lines:
        return _one_line(ended.last_lines[-1])
    if ended is not None and ended.signal is not None:
        return f"it {describe_exit(ended.code, ended.signal)}"
    lines = [line for line in output.read_text(errors="replace").splitlines() if line.strip()]
    return _one_line(lines[-1]) if lines else "it made no step"


def _one_line(text: str) -> str:
    return " ".join(text.split())[:400]


def link_few_images(data: data_set.DataSet, folder: Path, wanted: dict[str, int]) -> Path:
    """Create a dataset of links to an even sample of the images of each split. If there are too few images, some are linked twice."""
    for split, count in wanted.items():
        images = data.splits[split]
        image_folder, labels = folder / "images" / split, folder / "labels" / split
        image_folder.mkdir(parents=True)
        labels.mkdir(parents=True)
        for n in range(count):
            image = images[n * len(images) // count]
            name = data_set.link_name(n, image)
            (image_folder / name).symlink_to(image.absolute())
            label = data_set.label_path(image)
            if label.is_file():
                (labels / name).with_suffix(".txt").symlink_to(label.absolute())
    path = folder / "data.yaml"
    values: dict[str, Any] = {"path": str(folder), "train": "images/train", "val": "images/val"}
    values["names"] = dict(enumerate(data.names))
    if data.keypoints is not None:
        values["kpt_shape"] = list(data.keypoints)
    path.write_text(json.dumps(values))  # JSON is valid YAML, and quotes names correctly
    return path


def _resolve(plan: Plan, name: str) -> Path:
    path = Path(name)
    return path if path.is_absolute() else Path(plan.cwd) / path


def _find_model(plan: Plan, name: str) -> str:
    """Return the full path of an existing file; Ultralytics resolves any other name."""
    path = _resolve(plan, name)
    return os.fspath(path) if path.is_file() else name


def main(plan: str, folder: str) -> int:
    """Supervise one short run, without output, checks and reports."""
    from holdfast.supervisor import supervisor

    threading.Thread(target=_stop_with_parent, args=(os.getppid(),), daemon=True).start()
    return supervisor.start(RunFolder(Path(folder)), from_toml(Path(plan).read_text())).exit_status


def _stop_with_parent(parent: int) -> None:
    while os.getppid() == parent:
        time.sleep(1.0)
    os.kill(os.getpid(), signal.SIGTERM)

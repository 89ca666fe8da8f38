"""A small YOLO11n training that is killed and goes on, each life a fork, so that dozens of them take a minute.

What is compared is all that a user could look at: live weights, averaged weights, optimizer, schedule, gradients, random
numbers, early stopping, metrics, results.csv but for its clock, and the tensors of best.pt and last.pt.
"""

from __future__ import annotations

import contextlib
import hashlib
import importlib
import io
import itertools
import json
import os
import random
import signal
import sys
import traceback
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from holdfast.probe.holdfast_probe import torchvision_repair
from holdfast.probe.holdfast_probe.frameworks import ultralytics
from holdfast.probe.holdfast_probe.snapshots.capture import Capture
from holdfast.probe.holdfast_probe.snapshots.fs import Files
from holdfast.probe.holdfast_probe.snapshots.snapshotter import Snapshotter

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

SETTINGS = {
    "epochs": 4, "imgsz": 32, "batch": 4, "nbs": 8, "warmup_epochs": 1.5, "close_mosaic": 2, "mixup": 0.3, "plots": False,
    "device": "cpu", "amp": False, "exist_ok": True, "optimizer": "AdamW", "verbose": False, "seed": 3,
}  # fmt: skip


def import_ultralytics(config=None):
    """Offline, with settings of its own in this folder, and with Holdfast's own stand-in for torchvision's operators, which a CPU build of torch may not load (F26)."""
    if config is not None:
        os.environ.update(YOLO_CONFIG_DIR=str(config), YOLO_OFFLINE="true")
    torchvision_repair.install(Probe([]))
    importlib.import_module("torchvision")
    importlib.import_module("ultralytics.models.yolo.detect")


class Probe:
    """As much of a probe as the adapter asks for."""

    def __init__(self, told: list) -> None:
        self.torch = torch
        self.told = told
        self.awake = True
        self.step = 0
        self.inspectors: list = []
        self.loaders = SimpleNamespace(epochs_known_by=None, instances_of=None)

    def claim(self, by: str) -> bool:
        return True

    def set_resumed_step(self, step: int) -> None:
        self.step = step

    def emit(self, event: str, **fields: Any) -> None:
        self.told.append((event, fields))

    def note(self, what: str, detail: str = "", code: str = "") -> None:
        self.emit("probe-note", what=what, detail=detail, code=code)

    def failed(self, where: str, error: Exception) -> None:
        raise AssertionError(f"{where}: {error!r}") from error

    def __getattr__(self, name: str) -> Any:
        return lambda *_, **__: None


def watched(folder: Path, told: list, most_lost: float) -> None:
    """The adapter in its place, with nothing of a supervisor around it."""
    os.environ.update({"HOLDFAST_SNAPSHOTS": str(folder / "snapshots"), "HOLDFAST_MAX_LOST_WORK": str(most_lost)})
    if not most_lost:
        write_at_once()
    elif most_lost >= 3600:
        Snapshotter.is_due = Snapshotter.is_affordable = lambda *_: False
    ultralytics.install(Probe(told))


def write_at_once() -> None:
    """Each snapshot is on disk before the next batch is trained with, so that it is known which one a life goes on from."""
    take, copied = Snapshotter.take, Snapshotter.wait_until_copied

    def take_and_settle(snapshots: Snapshotter, *given: Any, in_background: bool) -> bool:
        taken = take(snapshots, *given, in_background=in_background)
        if not in_background:
            snapshots.flush()
        return taken

    def copied_and_settled(snapshots: Snapshotter) -> None:
        copied(snapshots)
        snapshots.flush()

    Snapshotter.take, Snapshotter.wait_until_copied = take_and_settle, copied_and_settled


def train(
    folder: Path, at: Callable[[str, int], None], workers: int, nan_at: int | None = None, **settings: Any
) -> dict[str, str]:
    """One life to its end. A hash of each thing that came out. `at` is told of each place, with the batches done so far."""
    from ultralytics.models.yolo.detect import DetectionTrainer

    torch.set_num_threads(1)
    asked = {**SETTINGS, "model": "yolo11n.yaml", "data": str(folder / "data.yaml"), **settings}
    trainer = DetectionTrainer(overrides={**asked, "project": str(folder / "runs"), "name": "life"})
    trainer.args.workers = workers  # which it sets to 0 on a CPU
    if nan_at is not None:
        trainer.add_callback("on_train_start", lambda trainer: spoil(trainer, nan_at))
    trainer.add_callback("on_pretrain_routine_end", lambda _: at("after its set-up", 0))
    for event, place in PLACES.items():
        trainer.add_callback(event, lambda trainer, place=place: at(place, batches_done(trainer, place)))
    trainer.add_callback("on_train_start", lambda trainer: tell_backwards(trainer, at))
    trainer.add_callback("on_train_start", lambda trainer: tell_validation(trainer, at))
    result: dict[str, str] = {}
    trainer.add_callback("on_train_end", lambda trainer: result.update(digests(trainer)))
    with contextlib.redirect_stdout(io.StringIO()):
        trainer.train()
    return result


PLACES = {
    "on_train_epoch_start": "an epoch's begin",
    "on_train_batch_end": "after a batch",
    "on_train_epoch_end": "before a validation",
    "on_model_save": "after a save",
    "on_fit_epoch_end": "an epoch's end",
}


def batches_done(trainer: Any, place: str = "") -> int:
    """Of the whole training. At an epoch's begin or end the loop itself may not know in the life that goes on there."""
    if place == "an epoch's begin":
        return trainer.epoch * len(trainer.train_loader)
    if place != "after a batch" and place:
        return (trainer.epoch + 1) * len(trainer.train_loader)
    frame = sys._getframe()
    while frame.f_code.co_name != "_do_train":
        frame = frame.f_back
    return frame.f_locals["ni"] + 1


def tell_backwards(trainer: Any, at: Callable[[str, int], None]) -> None:
    original = trainer.scaler.scale

    def scale(loss: torch.Tensor) -> torch.Tensor:
        done = batches_done(trainer) - 1
        loss.register_hook(lambda gradient: at("in a backward", done))
        return original(loss)

    trainer.scaler.scale = scale


def spoil(trainer: Any, batch: int) -> None:
    """The loss of this batch is NaN the first time that it is met in a training."""
    kind = type(trainer.model)
    original = kind.loss

    def loss(model: Any, *given: Any) -> Any:
        total, items = original(model, *given)
        now = model is trainer.model and model.training and not trainer.nan_recovery_attempts
        return total * float("nan") if now and batches_done(trainer) - 1 == batch else total, items

    kind.loss = loss


def tell_validation(trainer: Any, at: Callable[[str, int], None]) -> None:
    original = trainer.validator.postprocess

    def postprocess(predictions: Any) -> Any:
        at("in a validation", batches_done(trainer, "in a validation"))
        return original(predictions)

    trainer.validator.postprocess = postprocess


def tell_writes(at: Callable[[str, int], None]) -> None:
    """In the thread that writes snapshots: the number is that of the write."""
    original, count = Files.rename, itertools.count(1)

    def rename(files: Files, path: str, to: str) -> None:
        at("in a snapshot's write", next(count))
        original(files, path, to)

    Files.rename = rename


def tell_copies(at: Callable[[str, int], None]) -> None:
    """Where tensors are copied, with workers=0 beside the reading of the next batch: the number is that of the copy."""
    original, count = Capture.copy, itertools.count(1)

    def copy(capture: Capture) -> None:
        at("in a snapshot's copy", next(count))
        original(capture)

    Capture.copy = copy


def of(*values: Any) -> str:
    digest = hashlib.sha256()
    for value in values:
        digest.update(value.detach().numpy().tobytes() if isinstance(value, torch.Tensor) else repr(value).encode())
    return digest.hexdigest()[:16]


def backbone(state: dict[str, Any]) -> str:
    """Of its first ten layers: what freeze=10 keeps as it is."""
    return of(*(value for name, value in sorted(state.items()) if int(name.split(".")[1]) < 10))


def digests(trainer: Any) -> dict[str, str]:
    def of_file(path: Path) -> str:
        saved = torch.load(path, map_location="cpu", weights_only=False)
        return of(*(saved["ema"] or saved["model"]).state_dict().values())

    held = [value for state in trainer.optimizer.state.values() for value in state.values()]
    groups = [{k: v for k, v in group.items() if k != "params"} for group in trainer.optimizer.param_groups]
    rows = [line.split(",") for line in trainer.csv.read_text().splitlines()]
    return {
        "weights": of(*trainer.model.state_dict().values()),
        "backbone": backbone(trainer.model.state_dict()),
        "frozen": of([name for name, one in trainer.model.named_parameters() if not one.requires_grad]),
        "averages": of(*trainer.ema.ema.state_dict().values(), trainer.ema.updates),
        "optimizer": of(*held, groups),
        "gradients": of(*(p.grad for p in trainer.model.parameters())),
        "schedule": of(trainer.scheduler.last_epoch, trainer.accumulate),
        "random numbers": of(random.random(), np.random.rand(), torch.rand(1)),  # noqa: NPY002
        "stopping": of(sorted(vars(trainer.stopper).items()), trainer.best_fitness),
        "metrics": of(sorted(trainer.metrics.items())),
        "csv": of(*((row[0], *row[2:]) for row in rows)),
        "best.pt": of_file(trainer.best),
        "last.pt": of_file(trainer.last),
    }


class Lives:
    """Lets a training live and die, each life in a fork, until it comes to its end."""

    def __init__(
        self,
        folder: Path,
        *,
        workers: int = 0,
        bare: bool = False,
        most_lost: float = 0.0,
        wishes: dict | None = None,
        **settings: Any,
    ) -> None:
        """`wishes` are what the supervisor would ask of it from outside."""
        self.folder = folder
        self._wishes = wishes
        self._most_lost = most_lost
        self._workers = workers
        self._bare = bare
        self._settings = settings
        self.restored: list[int] = []
        """The positions that it went on from: batches done."""
        self.exact: list[bool] = []
        self.replayed: list[list] = []
        """How many batches were compared with those of an earlier life, and where the first that differed was."""
        self.told: list[tuple[str, dict]] = []
        """All that the adapter told."""
        self._count = 0

    def to_the_end(self, deaths: list[tuple[str, int]] = ()) -> dict[str, str]:
        """Dies at each of these places, in this order, and then not any more."""
        for death in deaths:
            assert self.live(death) is None, f"it came to its end before {death}"
        out = self.live(None)
        assert out is not None
        return out

    def live(self, death: tuple[str, int] | None, **settings: Any) -> dict[str, str] | None:
        """One life; None where it died as it was to."""
        self._count += 1
        out = self.folder / f"out-{self._count}.json"
        pid = os.fork()
        if not pid:
            self._in_the_fork(death, out, settings)
        _, status = os.waitpid(pid, 0)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(pid, signal.SIGKILL)  # a worker whose parent dies as it starts never notices
        said = json.loads(out.read_text()) if out.exists() else {}
        self.restored += said.get("restored", [])
        self.exact += said.get("exact", [])
        self.replayed += said.get("replayed", [])
        self.told += said.get("told", [])
        if os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGKILL:
            return None
        assert (status, said.get("error")) == (0, None), said.get("error")
        return said["digests"]

    def _in_the_fork(self, death: tuple[str, int] | None, out: Path, settings: dict) -> None:
        os.setpgid(0, 0)
        told: list = []
        said: dict[str, Any] = {}

        def say() -> None:
            restored = [fields for event, fields in told if event == "restored"]
            said["restored"] = [int(fields["path"].rpartition("/")[2].partition(".")[0]) for fields in restored]
            said["exact"] = [fields["exact"] for fields in restored]
            said["replayed"] = [
                (fields["compared"], fields["differs_at"]) for event, fields in told if event == "replayed"
            ]
            said["told"] = told
            out.write_text(json.dumps(said))

        def at(place: str, done: int) -> None:
            if death == (place, done):
                say()
                os.kill(os.getpid(), signal.SIGKILL)

        try:
            if self._wishes is not None:
                os.environ["HOLDFAST_OVERRIDES"] = json.dumps(self._wishes)
            if not self._bare:
                watched(self.folder, told, self._most_lost)
                tell_writes(at)
                tell_copies(at)
            said["digests"] = train(self.folder, at, self._workers, **{**self._settings, **settings})
            say()
            os._exit(0)
        except BaseException:  # noqa: BLE001 - what a fork raises is told by its parent
            said["error"] = traceback.format_exc()
            say()
            os._exit(1)

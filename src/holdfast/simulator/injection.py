"""Faults for a real training of Ultralytics, from outside: put the folder `injected` on PYTHONPATH and say in SIMULATOR_FAULTS what is to go wrong.

    SIMULATOR_FAULTS='{"folder": "/tmp/marks", "kill": {"at": 40}, "leak": {"mb": 4, "limit_mb": 1500}}'

kill        SIGKILL to itself before batch `at` of the whole training (a list: at each), once each
leak        every batch keeps `mb` megabytes; where the process passes `limit_mb`, the system's reaper (that is: SIGKILL) ends it
spike       a validation takes `mb` megabytes for each image of its batch, with the same limit
assigner    the assigner raises F04's error at batches `at`, once each, unless it works on the CPU by request
nan         a weight becomes NaN before batch `at`, once
slow        from batch `from` on every image takes `seconds` more to load, unless loader workers do it
zero        on a device that is not the CPU no box is ever assigned: box and dfl losses are 0 (needs `device`, below)
count       one byte in the file `batches` for each batch that is begun
device      names of devices other than the CPU mean the simulator's simulated one

Marks in `folder` say what has happened already: a training that is started again meets the next fault and not the same one.
"""

from __future__ import annotations

import functools
import importlib.util
import inspect
import json
import os
import signal
import sys
import time
from importlib.abc import MetaPathFinder
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psutil

if TYPE_CHECKING:
    from collections.abc import Sequence
    from importlib.machinery import ModuleSpec
    from types import FrameType, ModuleType

FOLDER = Path(__file__).parent / "injected"
"""What goes on PYTHONPATH."""
MB = 1 << 20
TRAINER = "ultralytics.engine.trainer"
MISMATCH = "shape mismatch: value tensor of shape [214] cannot be broadcast to indexing result of shape [213]"


def environment(folder: Path, **faults: Any) -> dict[str, str]:
    """Variables that make a training fail like this."""
    folder.mkdir(parents=True, exist_ok=True)
    path = os.pathsep.join(part for part in (str(FOLDER), os.environ.get("PYTHONPATH", "")) if part)
    return {"SIMULATOR_FAULTS": json.dumps({"folder": str(folder), **faults}), "PYTHONPATH": path}


def install() -> None:
    sys.meta_path.insert(0, _Waiting(Faults(json.loads(os.environ["SIMULATOR_FAULTS"]))))


class _Waiting(MetaPathFinder):
    """Until the trainer is imported."""

    def __init__(self, faults: Faults) -> None:
        self._faults = faults

    def find_spec(
        self, name: str, _path: Sequence[str] | None = None, _target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if name != TRAINER:
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(name)
        if spec is not None and spec.loader is not None:
            execute = spec.loader.exec_module

            def exec_module(module: ModuleType) -> None:
                execute(module)
                self._faults.watch(module)

            spec.loader.exec_module = exec_module  # type: ignore[method-assign]
        return spec


class Faults:
    def __init__(self, asked: dict[str, Any]) -> None:
        self._asked = asked
        self._folder = Path(asked["folder"])
        self._kept: list[bytearray] = []
        self._batch = 0

    def watch(self, module: Any) -> None:
        """The trainer is imported."""
        base = module.BaseTrainer
        original = base.run_callbacks

        @functools.wraps(original)
        def run_callbacks(trainer: Any, event: str) -> Any:
            if event == "on_train_batch_start":
                self._before_batch(trainer)
            return original(trainer, event)

        base.run_callbacks = run_callbacks
        if "spike" in self._asked:
            self._spike(base)
        if "device" in self._asked:
            self._simulate(module)
        if "assigner" in self._asked or "zero" in self._asked:
            self._assigner()
        if "slow" in self._asked:
            self._slow()

    def _before_batch(self, trainer: Any) -> None:
        # An epoch that was begun in another process is counted from where the loop stands.
        self._batch = trainer.epoch * len(trainer.train_loader) + _batch_of(inspect.currentframe())
        if "count" in self._asked:
            with (self._folder / "batches").open("ab") as file:
                file.write(b".")
        for fault in ("kill", "nan"):
            for at in _times(self._asked.get(fault)):
                if self._batch >= at and self._first_time(f"{fault}-{at}"):
                    getattr(self, "_" + fault)(trainer)
        leak = self._asked.get("leak")
        if leak:
            self._kept.append(bytearray(b"\1") * int(leak["mb"] * MB))
            _reap(leak["limit_mb"])

    def _first_time(self, name: str) -> bool:
        try:
            (self._folder / name).touch(exist_ok=False)
        except FileExistsError:
            return False
        return True

    def _kill(self, _trainer: Any) -> None:
        os.kill(os.getpid(), signal.SIGKILL)

    def _nan(self, trainer: Any) -> None:
        next(trainer.model.parameters()).data.view(-1)[0] = float("nan")

    def _spike(self, base: Any) -> None:
        original = base.validate

        @functools.wraps(original)
        def validate(trainer: Any) -> Any:
            taken = bytearray(b"\1") * int(self._asked["spike"]["mb"] * trainer.test_loader.batch_size * MB)
            _reap(self._asked["spike"]["limit_mb"])
            result = original(trainer)
            del taken
            return result

        base.validate = validate

    def _assigner(self) -> None:
        from ultralytics.utils.tal import TaskAlignedAssigner  # noqa: PLC0415 - only in a training that has it

        original = TaskAlignedAssigner.forward
        # Where an error comes from is told by the file that its last frame names.
        where: dict[str, Any] = {}
        file = inspect.getfile(TaskAlignedAssigner)
        exec(compile(f"def mismatch():\n    raise RuntimeError({MISMATCH!r})", file, "exec"), where)  # noqa: S102 - our own text
        mismatch = where["mismatch"]

        def forward(assigner: Any, scores: Any, *rest: Any) -> Any:
            wished = json.loads(os.environ.get("HOLDFAST_ULTRALYTICS", "{}")).get("assigner")
            for at in _times(self._asked.get("assigner")):
                if self._batch >= at and wished != "cpu" and self._first_time(f"assigner-{at}"):
                    mismatch()
            if "zero" in self._asked and scores.device.type != "cpu":
                rest = (*rest[:-1], rest[-1] * 0)
            return original(assigner, scores, *rest)

        TaskAlignedAssigner.forward = forward

    def _simulate(self, module: Any) -> None:
        import torch  # noqa: PLC0415
        from ultralytics.engine import validator  # noqa: PLC0415

        from holdfast.simulator import accelerator  # noqa: PLC0415

        accelerator.switch_on()

        original = module.select_device

        def select_device(device: Any = "", *args: Any, **kwargs: Any) -> Any:
            if str(device) in ("", "cpu", "None"):
                return original(device, *args, **kwargs)
            return torch.device("sim", 0)

        module.select_device = validator.select_device = select_device

    def _slow(self) -> None:
        import torch  # noqa: PLC0415
        from ultralytics.data.base import BaseDataset  # noqa: PLC0415

        asked, original = self._asked["slow"], BaseDataset.__getitem__

        def getitem(dataset: Any, index: int) -> Any:
            if torch.utils.data.get_worker_info() is None and self._batch >= asked["from"]:
                time.sleep(asked["seconds"])
            return original(dataset, index)

        BaseDataset.__getitem__ = getitem


def _times(asked: dict[str, Any] | None) -> list[int]:
    at = asked.get("at", []) if asked else []
    return at if isinstance(at, list) else [at]


def _batch_of(frame: FrameType | None) -> int:
    """The number of the batch in the trainer's loop, which no callback is told."""
    while frame is not None and frame.f_code.co_name != "_do_train":
        frame = frame.f_back
    return 0 if frame is None else int(frame.f_locals.get("i", 0))


def _reap(limit_mb: float) -> None:
    if _held() > limit_mb * MB:
        os.kill(os.getpid(), signal.SIGKILL)


def _held() -> int:
    process = psutil.Process()
    return sum(each.memory_info().rss for each in (process, *process.children(recursive=True)))

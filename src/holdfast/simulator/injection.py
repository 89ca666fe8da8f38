"""Faults for a real Ultralytics training, from outside: put the folder `injected` on PYTHONPATH and describe the faults in SIMULATOR_FAULTS.

    SIMULATOR_FAULTS='{"folder": "/tmp/marks", "kill": {"at": 40}, "leak": {"mb": 4, "limit_mb": 1500}}'

kill        the process sends itself SIGKILL before batch `at` of the whole training (or each in a list), once each
leak        every batch leaks `mb` megabytes; above `limit_mb` the process is killed (SIGKILL), as by the OOM killer
spike       a validation takes `mb` megabytes for each image of its batch, with the same limit
assigner    the assigner raises F04's error at batches `at`, once each, unless it was configured to run on the CPU
nan         a weight becomes NaN before batch `at`, once
slow        from batch `from` on, every image takes `seconds` longer to load, unless loader workers load it
zero        on a device other than the CPU no box is ever assigned: box and dfl losses are 0 (needs `device`, below)
count       one byte in the file `batches` for each batch that begins
device      all device names other than the CPU mean the simulated device

Files in `folder` record the faults that have already fired: a restarted training gets the next fault, not the same one.
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
"""The folder to put on PYTHONPATH."""
MB = 1 << 20
TRAINER = "ultralytics.engine.trainer"
MISMATCH = "shape mismatch: value tensor of shape [214] cannot be broadcast to indexing result of shape [213]"


def environment(folder: Path, **faults: Any) -> dict[str, str]:
    """Return the environment variables that inject these faults into a training."""
    folder.mkdir(parents=True, exist_ok=True)
    path = os.pathsep.join(part for part in (str(FOLDER), os.environ.get("PYTHONPATH", "")) if part)
    return {"SIMULATOR_FAULTS": json.dumps({"folder": str(folder), **faults}), "PYTHONPATH": path}


def install() -> None:
    sys.meta_path.insert(0, _ImportWatcher(Faults(json.loads(os.environ["SIMULATOR_FAULTS"]))))


class _ImportWatcher(MetaPathFinder):
    """Waits for the import of the trainer."""

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
                self._faults.patch_trainer(module)

            spec.loader.exec_module = exec_module  # type: ignore[method-assign]
        return spec


class Faults:
    def __init__(self, config: dict[str, Any]) -> None:
        self._config = config
        self._folder = Path(config["folder"])
        self._leaked: list[bytearray] = []
        self._batch = 0

    def patch_trainer(self, module: Any) -> None:
        """Install the faults after the trainer is imported."""
        base = module.BaseTrainer
        original = base.run_callbacks

        @functools.wraps(original)
        def run_callbacks(trainer: Any, event: str) -> Any:
            if event == "on_train_batch_start":
                self._before_batch(trainer)
            return original(trainer, event)

        base.run_callbacks = run_callbacks
        if "spike" in self._config:
            self._spike(base)
        if "device" in self._config:
            self._simulate(module)
        if "assigner" in self._config or "zero" in self._config:
            self._assigner()
        if "slow" in self._config:
            self._slow()

    def _before_batch(self, trainer: Any) -> None:
        # The loop's position counts too: an earlier process may have begun this epoch.
        self._batch = trainer.epoch * len(trainer.train_loader) + _find_batch(inspect.currentframe())
        if "count" in self._config:
            with (self._folder / "batches").open("ab") as file:
                file.write(b".")
        for fault in ("kill", "nan"):
            for at in _get_batches(self._config.get(fault)):
                if self._batch >= at and self._mark_once(f"{fault}-{at}"):
                    getattr(self, "_" + fault)(trainer)
        leak = self._config.get("leak")
        if leak:
            self._leaked.append(bytearray(b"\1") * int(leak["mb"] * MB))
            _reap(leak["limit_mb"])

    def _mark_once(self, name: str) -> bool:
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
            buffer = bytearray(b"\1") * int(self._config["spike"]["mb"] * trainer.test_loader.batch_size * MB)
            _reap(self._config["spike"]["limit_mb"])
            result = original(trainer)
            del buffer
            return result

        base.validate = validate

    def _assigner(self) -> None:
        from ultralytics.utils.tal import TaskAlignedAssigner  # noqa: PLC0415 - only if the training has it

        original = TaskAlignedAssigner.forward
        # The last frame's file name decides which library an error is attributed to.
        namespace: dict[str, Any] = {}
        file = inspect.getfile(TaskAlignedAssigner)
        exec(compile(f"def mismatch():\n    raise RuntimeError({MISMATCH!r})", file, "exec"), namespace)  # noqa: S102 - our own text
        mismatch = namespace["mismatch"]

        def forward(assigner: Any, scores: Any, *rest: Any) -> Any:
            requested = json.loads(os.environ.get("HOLDFAST_OVERRIDES", "{}")).get("assigner")
            for at in _get_batches(self._config.get("assigner")):
                if self._batch >= at and requested != "cpu" and self._mark_once(f"assigner-{at}"):
                    mismatch()
            if "zero" in self._config and scores.device.type != "cpu":
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

        config, original = self._config["slow"], BaseDataset.__getitem__

        def getitem(dataset: Any, index: int) -> Any:
            if torch.utils.data.get_worker_info() is None and self._batch >= config["from"]:
                time.sleep(config["seconds"])
            return original(dataset, index)

        BaseDataset.__getitem__ = getitem


def _get_batches(config: dict[str, Any] | None) -> list[int]:
    at = config.get("at", []) if config else []
    return at if isinstance(at, list) else [at]


def _find_batch(frame: FrameType | None) -> int:
    """Return the batch number in the trainer's loop, which callbacks do not receive."""
    while frame is not None and frame.f_code.co_name != "_do_train":
        frame = frame.f_back
    return 0 if frame is None else int(frame.f_locals.get("i", 0))


def _reap(limit_mb: float) -> None:
    if _memory_in_use() > limit_mb * MB:
        os.kill(os.getpid(), signal.SIGKILL)


def _memory_in_use() -> int:
    process = psutil.Process()
    return sum(member.memory_info().rss for member in (process, *process.children(recursive=True)))

"""Records every torch.save and compares the saved weights with the live ones.

The Python object that was passed to torch.save is compared, not the file: the supervisor reloads the files separately.
"""

import contextlib
import os
import time

from ..gc_pause import NoCollection
from ..import_hooks import after_import
from ..param_names import live
from . import Inspector, wrap_function
from .weight_compare import compare, tensors_in
from .weight_history import WeightHistory

MAX_COMPARED = 8
MIN_COMPARED = 2


class CheckpointSavesInspector(Inspector):
    name = "saves"

    def __init__(self, probe, names):
        super().__init__(probe)
        self._names = names
        self._count = 0
        self._collected = None
        self._comparing = True
        self._history = WeightHistory(probe)
        self.averages = []
        """Functions that return a module whose weights are an average of the live weights, or None."""
        wrap_function((probe.torch, probe.torch.serialization), "save", self._save_and_record)
        after_import("safetensors.torch", lambda module: wrap_function((module,), "save_file", self._save_and_record))

    @contextlib.contextmanager
    def collect_saves(self):
        """Collect in-memory saves made inside this context instead of reporting them. The caller knows their file."""
        previous, self._collected = self._collected, []
        try:
            yield self._collected
        finally:
            self._collected = previous

    def report(self, fields):
        self.probe.see(self.name)
        self.probe.emit("saved", **fields)

    @contextlib.contextmanager
    def rewriting(self):
        """Report files written inside this context without comparing them: they contain older weights on purpose."""
        previous, self._comparing = self._comparing, False
        try:
            yield
        finally:
            self._comparing = previous

    def step_begins(self, optimizer, is_primary):
        self._history.step_begins(optimizer)

    def forked(self):
        return self._history.forked()

    def _save_and_record(self, original, args, kwargs):
        probe = self.probe
        if not probe.awake or probe.silent:
            return original(*args, **kwargs)
        began = time.perf_counter()
        is_training_thread = probe.scalars.on_training_thread()
        phase = probe.phase("saving") if is_training_thread else None
        try:
            result = original(*args, **kwargs)
            try:
                obj, target = parse_save_arguments(args, kwargs)
                self._record_save(obj, target, time.perf_counter() - began, is_training_thread)
            except Exception as error:
                probe.failed("comparing the saved weights", error)
        finally:
            if is_training_thread:  # a save on another thread takes no time from the steps
                probe.phase(phase)
                probe.paused(time.perf_counter() - began)
        return result

    def _record_save(self, obj, target, seconds, is_training_thread):
        self._count += 1
        if self.probe.heart is not None:
            self.probe.heart.saves(self._count)
        fields = {
            "step": self.probe.step,
            "path": get_path(target),
            "bytes": get_size(target),
            "seconds": round(seconds, 6),
        }
        if self._comparing and is_training_thread:  # on another thread, the live weights keep changing
            budget = self.probe.budget
            max_compared = MAX_COMPARED if budget.allows(budget.expected(self.name)) else MIN_COMPARED
            with NoCollection(), budget.spending(self.name), self.probe.torch.no_grad():
                fields.update(self._compare_with_live(obj, max_compared))
        if fields["path"] is None and self._collected is not None:
            self._collected.append(fields)
        else:
            self.report(fields)

    def _compare_with_live(self, obj, max_compared):
        torch = self.probe.torch
        saved = tensors_in(torch, obj)
        if not saved or not self.probe.optimizers:
            return {"tensors": len(saved)}
        return compare(torch, saved, self._names.live(), live(self.averages), max_compared, self._history)


def parse_save_arguments(args, kwargs):
    """Return object and target of torch.save(obj, f) or safetensors' save_file(tensors, filename)."""
    obj = args[0] if args else kwargs.get("obj", kwargs.get("tensors"))
    target = args[1] if len(args) > 1 else kwargs.get("f", kwargs.get("filename"))
    return obj, target


def get_path(target):
    """Return the absolute path of a path or an open file, or None for anything else."""
    if not isinstance(target, (str, os.PathLike)):
        target = getattr(target, "name", None)
    path = os.fspath(target) if isinstance(target, (str, os.PathLike)) else None
    return os.path.abspath(path) if isinstance(path, str) else None


def get_size(target):
    try:
        if isinstance(target, (str, os.PathLike)):
            return os.path.getsize(target)
        return int(target.tell())
    except (OSError, ValueError, TypeError, AttributeError):
        return None

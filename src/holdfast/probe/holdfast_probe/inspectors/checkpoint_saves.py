"""Every torch.save, and whether what was saved is what is live.

The Python object that was given to torch.save is compared, not the file: the supervisor reloads files by itself.
"""

import contextlib
import functools
import os
import time

from ..gc_pause import NoCollection
from ..import_hooks import after_import
from . import Inspector
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
        self._held_back = None
        self._comparing = True
        self._earlier = WeightHistory(probe)
        self.averages = []
        """Functions that return a module whose weights are an average of the live ones, or None."""
        wrap((probe.torch, probe.torch.serialization), "save", self._around)
        after_import("safetensors.torch", lambda module: wrap((module,), "save_file", self._around))

    @contextlib.contextmanager
    def held_back(self):
        """Saves into memory made inside are not told but collected: the caller knows which file they become."""
        outer, self._held_back = self._held_back, []
        try:
            yield self._held_back
        finally:
            self._held_back = outer

    def tell(self, fields):
        self.probe.see(self.name)
        self.probe.emit("saved", **fields)

    @contextlib.contextmanager
    def rewriting(self):
        """Files written inside hold older weights on purpose: they are told, not compared."""
        outer, self._comparing = self._comparing, False
        try:
            yield
        finally:
            self._comparing = outer

    def step_begins(self, optimizer, clock):
        self._earlier.step_begins(optimizer)

    def forked(self):
        return self._earlier.forked()

    def _around(self, original, args, kwargs):
        probe = self.probe
        if not probe.awake or probe.silent:
            return original(*args, **kwargs)
        began = time.perf_counter()
        training = probe.scalars.on_training_thread()
        phase = probe.phase("saving") if training else None
        try:
            result = original(*args, **kwargs)
            try:
                thing, target = thing_and_target(args, kwargs)
                self._saved(thing, target, time.perf_counter() - began, training)
            except Exception as error:
                probe.failed("comparing what was saved", error)
        finally:
            if training:  # on another thread it takes no time from the steps
                probe.phase(phase)
                probe.paused(time.perf_counter() - began)
        return result

    def _saved(self, thing, target, seconds, training):
        self._count += 1
        if self.probe.heart is not None:
            self.probe.heart.saves(self._count)
        fields = {
            "step": self.probe.step,
            "path": path_of(target),
            "bytes": size_of(target),
            "seconds": round(seconds, 6),
        }
        if self._comparing and training:  # seen from another thread, the live weights go on changing
            budget = self.probe.budget
            most = MAX_COMPARED if budget.allows(budget.expected(self.name)) else MIN_COMPARED
            with NoCollection(), budget.spending(self.name), self.probe.torch.no_grad():
                fields.update(self._likeness(thing, most))
        if fields["path"] is None and self._held_back is not None:
            self._held_back.append(fields)
        else:
            self.tell(fields)

    def _likeness(self, thing, most):
        torch = self.probe.torch
        saved = tensors_in(torch, thing)
        if not saved or not self.probe.optimizers:
            return {"tensors": len(saved)}
        averages = [module for module in (average() for average in self.averages) if module is not None]
        return compare(torch, saved, self._names.live(), averages, most, self._earlier)


def wrap(modules, attribute, around):
    """Replaces a function that saves by one that goes through `around`, in all modules that hold it: a function is pickled
    as its module's, and must be found there.
    """
    original = getattr(modules[0], attribute, None)
    if original is None or getattr(original, "_holdfast", False):
        return

    @functools.wraps(original)
    def save(*args, **kwargs):
        return around(original, args, kwargs)

    save._holdfast = True
    for module in modules:
        if getattr(module, attribute, None) is original:
            setattr(module, attribute, save)


def thing_and_target(args, kwargs):
    """torch.save(obj, f) and safetensors' save_file(tensors, filename), positional or by name."""
    thing = args[0] if args else kwargs.get("obj", kwargs.get("tensors"))
    target = args[1] if len(args) > 1 else kwargs.get("f", kwargs.get("filename"))
    return thing, target


def path_of(target):
    """The absolute path behind a path or an open file; None for anything else."""
    if not isinstance(target, (str, os.PathLike)):
        target = getattr(target, "name", None)
    if not isinstance(target, (str, os.PathLike)):
        return None
    path = os.fspath(target)
    return os.path.abspath(path) if isinstance(path, str) else None


def size_of(target):
    try:
        if isinstance(target, (str, os.PathLike)):
            return os.path.getsize(target)
        return int(target.tell())
    except (OSError, ValueError, TypeError, AttributeError):
        return None

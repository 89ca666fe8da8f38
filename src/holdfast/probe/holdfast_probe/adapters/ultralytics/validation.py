"""Validation every n epochs, with its own batch size and number of boxes, and best.pt by another metric.

An epoch without validation has no metrics: those of an earlier epoch are not written to results.csv again, do not count for early
stopping, and do not update best.pt. The weights are the same as with all validations (see rng_parity).
"""

import random

from ...snapshots.fs import replace_content
from . import best_metric
from .callbacks import wrap_method
from .rng_parity import RngParity

DEFAULTS = {"every": 1, "batch": None, "max_det": None, "best_by": "fitness"}


def told_apart_by(requested_overrides):
    """Return entries for the fingerprint of a snapshot: other validations may change best.pt and the metrics, but not the weights."""
    parts = {name: requested_overrides.get(name, usual) for name, usual in DEFAULTS.items()}
    return {"validation " + name: str(value) for name, value in parts.items() if value not in (None, DEFAULTS[name])}


class Validation(object):
    def __init__(self, torch, watcher, requested_overrides):
        self._watcher = watcher
        self._drawing = RngParity(torch, watcher.note)
        self._every = max(1, int(requested_overrides.get("every") or 1))
        self._batch = requested_overrides.get("batch")
        self._max_det = requested_overrides.get("max_det")
        self._by = requested_overrides.get("best_by")
        if self._by not in best_metric.KNOWN:
            self._by = None

    def of(self, trainer_class):
        """Wrap the methods of a trainer class before a trainer is created."""
        for wanted, name, around in (
            (self._every > 1 or self._by, "validate", self._around_validate),
            (self._every > 1, "save_metrics", self._around_save_metrics),
            (self._every > 1, "save_model", self._around_save_model),
            (self._batch, "get_dataloader", self._around_loader),
            (self._max_det, "get_validator", self._around_validator),
        ):
            if wanted and hasattr(trainer_class, name):
                wrap_method(trainer_class, name, around)
            elif wanted:
                self._watcher.note("this version of ultralytics validates differently", "it has no %s" % name)

    # --- when, and the best by what ------------------------------------------------------------------------------

    def due(self, trainer):
        """Return whether to validate the current epoch: every nth, the last one, and the one at which early stopping would stop."""
        epoch = trainer.epoch + 1
        if epoch % self._every == 0 or epoch >= trainer.epochs or trainer.stop:
            return True
        if getattr(trainer, "world_size", 0) > 1:  # only the first rank keeps count of early stopping
            return False
        return epoch - trainer.stopper.best_epoch >= trainer.stopper.patience

    def _around_validate(self, original, trainer, args, kwargs):
        due, before, drawn = True, getattr(trainer, "best_fitness", None), random.getstate()
        with self._watcher.never_raising("deciding whether to validate"):
            if not self.due(trainer):
                self._drawing.instead_of(trainer.test_loader)
                due = False
            trainer._holdfast_passed_over = None if due else trainer.epoch
        if not due:
            return trainer.metrics, None
        metrics, fitness = original(trainer, *args, **kwargs)
        with self._watcher.never_raising("after a validation"):
            if self._every > 1:
                self._drawing.check(trainer.test_loader, drawn)
            if self._by is not None and metrics:
                fitness = self._judged(trainer, metrics, fitness, before)
        return metrics, fitness

    def _judged(self, trainer, metrics, fitness, before):
        score = best_metric.score(metrics, self._by)
        if score is None:
            self._watcher.note("best.pt is selected by Ultralytics' own fitness", "there is no %s here" % self._by)
            return fitness
        trainer.best_fitness = score if before is None or before < score else before
        return score

    # --- what is written of an epoch that was not validated ------------------------------------------------------

    def _around_save_metrics(self, original, trainer, args, kwargs):
        result = original(trainer, *args, **kwargs)
        if _is_passed_over(trainer):
            with self._watcher.never_raising("results.csv of an epoch that was not validated"):
                empty_in_last_row(str(trainer.csv), trainer.metrics)
        return result

    def _around_save_model(self, original, trainer, args, kwargs):
        """Ultralytics saves best.pt if the fitness equals the best, and before the first validation both are None."""
        if not _is_passed_over(trainer) or trainer.best_fitness is not None:
            return original(trainer, *args, **kwargs)
        trainer.fitness = 0.0
        try:
            return original(trainer, *args, **kwargs)
        finally:
            trainer.fitness = None

    # --- how -----------------------------------------------------------------------------------------------------

    def _around_loader(self, original, trainer, args, kwargs):
        """get_dataloader(dataset_path, batch_size, rank, mode)"""
        with self._watcher.never_raising("the validation batch size"):
            mode = args[3] if len(args) > 3 else kwargs.get("mode")
            if mode == "val" and len(args) > 1:
                args = (args[0], int(self._batch), *args[2:])
            elif mode == "val":
                kwargs = dict(kwargs, batch_size=int(self._batch))
        return original(trainer, *args, **kwargs)

    def _around_validator(self, original, trainer, args, kwargs):
        validator = original(trainer, *args, **kwargs)
        with self._watcher.never_raising("the maximum number of boxes"):
            validator.args.max_det = int(self._max_det)
        return validator


def _is_passed_over(trainer):
    """Return whether the current epoch was not validated."""
    return getattr(trainer, "_holdfast_passed_over", None) == trainer.epoch


def empty_in_last_row(path, names):
    """Clear these columns in the last row of a table with a header, so that plots leave a gap there."""
    with open(path, encoding="utf-8") as file:
        lines = file.read().splitlines()
    header, cells = lines[0].split(","), lines[-1].split(",")
    if len(header) != len(cells):
        raise ValueError("the last row has %d cells, but the header has %d names" % (len(cells), len(header)))
    lines[-1] = ",".join("" if name.strip() in names else cell for name, cell in zip(header, cells))
    replace_content(path, ("\n".join(lines) + "\n").encode("utf-8"))

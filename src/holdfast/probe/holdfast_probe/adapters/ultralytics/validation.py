"""Validation every n epochs, with batches and a number of boxes of its own, and the best by another number.

An epoch that is not validated has no metrics: those of an earlier one are not written to results.csv again, do not count for
early stopping, and do not make best.pt anew. The weights are those that they would have been with all validations (see drawing).
"""

import random

from ...snapshots.fs import replace_content
from . import best_metric
from .callbacks import wrap_method
from .rng_parity import RngParity

DEFAULTS = {"every": 1, "batch": None, "max_det": None, "best_by": "fitness"}


def told_apart_by(requested_overrides):
    """For a snapshot's fingerprint: with other validations best.pt and the metrics may be others, though the weights are not."""
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
        """A trainer of this class is about to be made."""
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
                self._watcher.note("this version of ultralytics validates otherwise", "it has no %s" % name)

    # --- when, and the best by what ------------------------------------------------------------------------------

    def due(self, trainer):
        """Whether the epoch at hand is validated: each nth, the last, and one that early stopping would end with."""
        epoch = trainer.epoch + 1
        if epoch % self._every == 0 or epoch >= trainer.epochs or trainer.stop:
            return True
        if getattr(trainer, "world_size", 0) > 1:  # only the first rank keeps count of early stopping
            return False
        return epoch - trainer.stopper.best_epoch >= trainer.stopper.patience

    def _around_validate(self, original, trainer, args, kwargs):
        due, before, drawn = True, getattr(trainer, "best_fitness", None), random.getstate()
        with self._watcher.never_raising("whether to validate"):
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
            self._watcher.note("best.pt is the best by Ultralytics' own fitness", "there is no %s here" % self._by)
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
        """Ultralytics saves best.pt where the fitness is the best, and with none validated yet both are None."""
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
        with self._watcher.never_raising("the batches of a validation"):
            mode = args[3] if len(args) > 3 else kwargs.get("mode")
            if mode == "val" and len(args) > 1:
                args = (args[0], int(self._batch), *args[2:])
            elif mode == "val":
                kwargs = dict(kwargs, batch_size=int(self._batch))
        return original(trainer, *args, **kwargs)

    def _around_validator(self, original, trainer, args, kwargs):
        validator = original(trainer, *args, **kwargs)
        with self._watcher.never_raising("how many boxes are kept"):
            validator.args.max_det = int(self._max_det)
        return validator


def _is_passed_over(trainer):
    """Whether the epoch at hand was not validated."""
    return getattr(trainer, "_holdfast_passed_over", None) == trainer.epoch


def empty_in_last_row(path, names):
    """In a table with a header, these columns of the last row become empty: plots leave a gap there."""
    with open(path, encoding="utf-8") as file:
        lines = file.read().splitlines()
    header, cells = lines[0].split(","), lines[-1].split(",")
    if len(header) != len(cells):
        raise ValueError("the last row has %d cells under %d names" % (len(cells), len(header)))
    lines[-1] = ",".join("" if name.strip() in names else cell for name, cell in zip(header, cells))
    replace_content(path, ("\n".join(lines) + "\n").encode("utf-8"))

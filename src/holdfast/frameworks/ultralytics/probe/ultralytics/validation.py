"""Validation every n epochs, with its own batch size and number of boxes, and best.pt by another metric.

An epoch without validation has no metrics: those of an earlier epoch are not written to results.csv again, do not count
for early stopping, and do not update best.pt. The weights are the same as with all validations (see rng_parity).
"""

import random

from ...snapshots.fs import replace_content
from . import best_metric
from .callbacks import wrap_method
from .rng_parity import RngParity

DEFAULTS = {"every": 1, "batch": None, "max_det": None, "best_by": "fitness"}


def describe_validation(overrides):
    """Return entries for the fingerprint of a snapshot: other validations may change best.pt and the metrics, but not
    the weights.
    """
    parts = {name: overrides.get(name, default) for name, default in DEFAULTS.items()}
    return {"validation " + name: str(value) for name, value in parts.items() if value not in (None, DEFAULTS[name])}


class Validation(object):
    def __init__(self, torch, callbacks, overrides):
        self._callbacks = callbacks
        self._rng_parity = RngParity(torch, callbacks.note)
        self._every = max(1, int(overrides.get("every") or 1))
        self._batch = overrides.get("batch")
        self._max_det = overrides.get("max_det")
        self._metric = overrides.get("best_by")
        if self._metric not in best_metric.METRICS:
            self._metric = None

    def wrap_trainer(self, trainer_class):
        """Wrap the methods of a trainer class before a trainer is created."""
        for wanted, name, around in (
            (self._every > 1 or self._metric, "validate", self._around_validate),
            (self._every > 1, "save_metrics", self._around_save_metrics),
            (self._every > 1, "save_model", self._around_save_model),
            (self._batch, "get_dataloader", self._around_loader),
            (self._max_det, "get_validator", self._around_validator),
        ):
            if wanted and hasattr(trainer_class, name):
                wrap_method(trainer_class, name, around)
            elif wanted:
                self._callbacks.note("this version of ultralytics validates differently", "it has no %s" % name)

    # --- when to validate, and the best metric -------------------------------------------------------------------

    def is_due(self, trainer):
        """Return whether to validate the current epoch: every nth, the last one, and the one at which early stopping
        would stop.
        """
        epoch = trainer.epoch + 1
        if epoch % self._every == 0 or epoch >= trainer.epochs or trainer.stop:
            return True
        if getattr(trainer, "world_size", 0) > 1:  # only the first rank keeps count of early stopping
            return False
        return epoch - trainer.stopper.best_epoch >= trainer.stopper.patience

    def _around_validate(self, original, trainer, args, kwargs):
        is_due, before, rng_state = True, getattr(trainer, "best_fitness", None), random.getstate()
        with self._callbacks.report_errors("deciding whether to validate"):
            if not self.is_due(trainer):
                self._rng_parity.skip_validation(trainer.test_loader)
                is_due = False
            trainer._holdfast_skipped_epoch = None if is_due else trainer.epoch
        if not is_due:
            return trainer.metrics, None
        metrics, fitness = original(trainer, *args, **kwargs)
        with self._callbacks.report_errors("after a validation"):
            if self._every > 1:
                self._rng_parity.check(trainer.test_loader, rng_state)
            if self._metric is not None and metrics:
                fitness = self._apply_metric(trainer, metrics, fitness, before)
        return metrics, fitness

    def _apply_metric(self, trainer, metrics, fitness, before):
        score = best_metric.score(metrics, self._metric)
        if score is None:
            self._callbacks.note(
                "best.pt is selected by Ultralytics' own fitness", "there is no %s here" % self._metric
            )
            return fitness
        trainer.best_fitness = score if before is None or before < score else before
        return score

    # --- files of an epoch without validation --------------------------------------------------------------------

    def _around_save_metrics(self, original, trainer, args, kwargs):
        result = original(trainer, *args, **kwargs)
        if _is_skipped(trainer):
            with self._callbacks.report_errors("results.csv of an epoch that was not validated"):
                clear_last_row(str(trainer.csv), trainer.metrics)
        return result

    def _around_save_model(self, original, trainer, args, kwargs):
        """Ultralytics saves best.pt if the fitness equals the best, and before the first validation both are None."""
        if not _is_skipped(trainer) or trainer.best_fitness is not None:
            return original(trainer, *args, **kwargs)
        trainer.fitness = 0.0
        try:
            return original(trainer, *args, **kwargs)
        finally:
            trainer.fitness = None

    # --- how to validate -----------------------------------------------------------------------------------------

    def _around_loader(self, original, trainer, args, kwargs):
        """get_dataloader(dataset_path, batch_size, rank, mode)"""
        with self._callbacks.report_errors("the validation batch size"):
            mode = args[3] if len(args) > 3 else kwargs.get("mode")
            if mode == "val" and len(args) > 1:
                args = (args[0], int(self._batch), *args[2:])
            elif mode == "val":
                kwargs = dict(kwargs, batch_size=int(self._batch))
        return original(trainer, *args, **kwargs)

    def _around_validator(self, original, trainer, args, kwargs):
        validator = original(trainer, *args, **kwargs)
        with self._callbacks.report_errors("the maximum number of boxes"):
            validator.args.max_det = int(self._max_det)
        return validator


def _is_skipped(trainer):
    """Return whether the current epoch was not validated."""
    return getattr(trainer, "_holdfast_skipped_epoch", None) == trainer.epoch


def clear_last_row(path, names):
    """Clear these columns in the last row of a table with a header, so that plots leave a gap there."""
    with open(path, encoding="utf-8") as file:
        lines = file.read().splitlines()
    header, cells = lines[0].split(","), lines[-1].split(",")
    if len(header) != len(cells):
        raise ValueError("the last row has %d cells, but the header has %d names" % (len(cells), len(header)))
    lines[-1] = ",".join("" if name.strip() in names else cell for name, cell in zip(header, cells))
    replace_content(path, ("\n".join(lines) + "\n").encode("utf-8"))

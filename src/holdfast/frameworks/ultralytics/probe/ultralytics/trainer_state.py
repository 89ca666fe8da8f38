"""The state of an Ultralytics trainer: everything that must be restored to resume exactly.

Its own checkpoint contains the averaged weights and the optimizer in half precision, and no random states.
"""

import time

from ...snapshots.encoding import PLAIN_TYPES
from ...snapshots.fs import replace_content
from ...snapshots.stateful import StatefulObjects

PLAIN_FIELDS = (
    "accumulate",
    "best_fitness",
    "epoch_time",
    "fitness",
    "loss_items",
    "loss_names",
    "lr",
    "metrics",
    "nan_recovery_attempts",
    "stop",
    "tloss",
)
RATE_SETTINGS = ("lr0", "lrf", "momentum", "weight_decay", "optimizer", "cos_lr", "epochs", "nbs", "batch")
"""Settings that determine the optimizer groups and the learning rate schedule."""
STATE_SIZE_FACTOR = 5
"""Weights, averaged weights, gradients, and two moments."""


class TrainerState(object):
    def __init__(self, torch, trainer):
        self._torch = torch
        self._model = unwrap(trainer.model)
        parts = {
            "model": self._model,
            "ema": trainer.ema.ema,
            "optimizer": trainer.optimizer,
            "scheduler": trainer.scheduler,
            "scaler": trainer.scaler,
        }
        self._objects = StatefulObjects(torch, parts)

    def expected_bytes(self):
        """Return the size of a complete state, before gradients and optimizer moments exist."""
        return STATE_SIZE_FACTOR * sum(
            tensor.numel() * tensor.element_size() for tensor in self._model.state_dict().values()
        )

    def get_state(self, trainer):
        """Return live tensors, not copies."""
        loss = trainer.loss
        return {
            "objects": self._objects.state(),
            "optimizer": type(trainer.optimizer).__name__,
            "plain": {name: getattr(trainer, name, None) for name in PLAIN_FIELDS},
            "loss": loss.detach() if isinstance(loss, self._torch.Tensor) else None,
            "averaged": trainer.ema.updates,
            "stopper": dict(vars(trainer.stopper)),
            "criterion": _get_plain_values(getattr(self._model, "criterion", None)),
            "plots": bool(trainer.validator.args.plots),
            "start_epoch": trainer.start_epoch,
            "seconds": time.time() - trainer.train_time_start,
            "csv": _read_file(trainer.csv),
        }

    def why_incompatible(self, saved):
        """Return why a saved state does not fit the model of this trainer, or None."""
        for name in ("model", "ema"):
            then, now = saved["objects"][name]["state"], self._objects.parts[name].state_dict()
            differing = [
                key for key in {**then, **now} if key not in then or key not in now or then[key].shape != now[key].shape
            ]
            if differing:
                return "%d of its %d tensors differ, for example %s" % (len(differing), len(now), min(differing))
        return None

    def restore(self, trainer, saved, changed):
        """Restore a saved state. `changed` names changed settings: values that depend on them keep their new value."""
        same = saved["optimizer"] == type(trainer.optimizer).__name__
        self._restore_objects(trainer, saved["objects"], changed, same)
        for name, value in saved["plain"].items():
            if name != "accumulate" or not changed:
                setattr(trainer, name, self._on_device(value, trainer.device))
        trainer.loss = self._on_device(saved["loss"], trainer.device)
        trainer.ema.updates = saved["averaged"]
        stopper = dict(saved["stopper"])
        if "patience" in changed:
            stopper.pop("patience", None)
        vars(trainer.stopper).update(stopper)
        trainer.validator.args.plots = saved["plots"]
        trainer.start_epoch = saved["start_epoch"]
        trainer.train_time_start = time.time() - saved["seconds"]
        if saved["criterion"] is not None:
            if getattr(self._model, "criterion", None) is None:
                self._model.criterion = self._model.init_criterion()
            values = dict(saved["criterion"])
            if "overlap_mask" in changed:
                values.pop("overlap", None)
            vars(self._model.criterion).update(values)

    def _restore_objects(self, trainer, saved, changed, same_optimizer):
        rates_changed = not same_optimizer or any(name in changed for name in RATE_SETTINGS)
        if not same_optimizer:
            saved = dict(saved, optimizer={"state": trainer.optimizer.state_dict()})
        own_options = [{k: v for k, v in group.items() if k != "params"} for group in trainer.optimizer.param_groups]
        if "freeze" in changed:
            saved = dict(saved, model=dict(saved["model"], frozen=self._find_frozen()))
        if rates_changed:
            saved = dict(saved, scheduler={"state": trainer.scheduler.state_dict()})
        self._objects.restore(saved)
        if rates_changed:
            for group, options in zip(trainer.optimizer.param_groups, own_options):
                group.update(options)
        if changed:
            # None, not zero: the optimizer also has frozen parameters, and its moments would still move them.
            trainer.optimizer.zero_grad(set_to_none=True)

    def _find_frozen(self):
        """Return the names of the parameters that the trainer has frozen."""
        state = self._model.state_dict(keep_vars=True)
        return [
            name
            for name, value in state.items()
            if isinstance(value, self._torch.nn.Parameter) and not value.requires_grad
        ]

    def _on_device(self, value, device):
        if isinstance(value, self._torch.Tensor):
            return value.to(device, copy=True)
        if type(value) is dict:
            return {key: self._on_device(item, device) for key, item in value.items()}
        return value


def unwrap(model):
    return getattr(model, "module", model) if type(model).__name__.endswith("DataParallel") else model


def _get_plain_values(criterion):
    """Return the plain values of the loss, which may count its own updates. None if there is no loss yet."""
    if criterion is None:
        return None
    return {name: value for name, value in vars(criterion).items() if type(value) in PLAIN_TYPES}


def restore_csv(trainer, saved):
    """Restore results.csv, which Ultralytics removes when it creates a trainer. Raise OSError."""
    if saved["csv"] is not None:
        replace_content(trainer.csv, saved["csv"])


def _read_file(path):
    try:
        with open(str(path), "rb") as file:
            return file.read()
    except OSError:
        return None

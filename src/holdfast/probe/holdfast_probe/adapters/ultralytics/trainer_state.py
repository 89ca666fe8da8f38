"""The state of an Ultralytics trainer: everything that must be restored to resume exactly.

Its own checkpoint contains the averaged weights and the optimizer in half precision, and no random states.
"""

import time

from ...snapshots.encoding import PLAIN
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
OF_THE_RATE = ("lr0", "lrf", "momentum", "weight_decay", "optimizer", "cos_lr", "epochs", "nbs", "batch")
"""Settings that determine the optimizer groups and the learning rate schedule."""
TIMES_THE_MODEL = 5
"""Weights, averaged weights, gradients, and two moments."""


class TrainerState(object):
    def __init__(self, torch, trainer):
        self._torch = torch
        self._model = unwrapped(trainer.model)
        parts = {
            "model": self._model,
            "ema": trainer.ema.ema,
            "optimizer": trainer.optimizer,
            "scheduler": trainer.scheduler,
            "scaler": trainer.scaler,
        }
        self._objects = StatefulObjects(torch, parts)

    def bytes_expected(self):
        """Return the size of a complete state, before gradients and optimizer moments exist."""
        return TIMES_THE_MODEL * sum(
            tensor.numel() * tensor.element_size() for tensor in self._model.state_dict().values()
        )

    def of(self, trainer):
        """Return live tensors, not copies."""
        loss = trainer.loss
        return {
            "objects": self._objects.state(),
            "optimizer": type(trainer.optimizer).__name__,
            "plain": {name: getattr(trainer, name, None) for name in PLAIN_FIELDS},
            "loss": loss.detach() if isinstance(loss, self._torch.Tensor) else None,
            "averaged": trainer.ema.updates,
            "stopper": dict(vars(trainer.stopper)),
            "criterion": _numbers_of(getattr(self._model, "criterion", None)),
            "plots": bool(trainer.validator.args.plots),
            "start_epoch": trainer.start_epoch,
            "seconds": time.time() - trainer.train_time_start,
            "csv": _content(trainer.csv),
        }

    def why_not(self, kept):
        """Return why a saved state does not fit the model of this trainer, or None."""
        for name in ("model", "ema"):
            then, now = kept["objects"][name]["state"], self._objects.parts[name].state_dict()
            other = [
                key for key in {**then, **now} if key not in then or key not in now or then[key].shape != now[key].shape
            ]
            if other:
                return "%d of its %d tensors differ, for example %s" % (len(other), len(now), min(other))
        return None

    def give_back(self, trainer, kept, changed):
        """Restore a saved state. `changed` names changed settings: values that depend on them keep their new value."""
        same = kept["optimizer"] == type(trainer.optimizer).__name__
        self._give_objects_back(trainer, kept["objects"], changed, same)
        for name, value in kept["plain"].items():
            if name != "accumulate" or not changed:
                setattr(trainer, name, self._on_device(value, trainer.device))
        trainer.loss = self._on_device(kept["loss"], trainer.device)
        trainer.ema.updates = kept["averaged"]
        stopper = dict(kept["stopper"])
        if "patience" in changed:
            stopper.pop("patience", None)
        vars(trainer.stopper).update(stopper)
        trainer.validator.args.plots = kept["plots"]
        trainer.start_epoch = kept["start_epoch"]
        trainer.train_time_start = time.time() - kept["seconds"]
        if kept["criterion"] is not None:
            if getattr(self._model, "criterion", None) is None:
                self._model.criterion = self._model.init_criterion()
            numbers = dict(kept["criterion"])
            if "overlap_mask" in changed:
                numbers.pop("overlap", None)
            vars(self._model.criterion).update(numbers)

    def _give_objects_back(self, trainer, kept, changed, same_optimizer):
        rates_changed = not same_optimizer or any(name in changed for name in OF_THE_RATE)
        if not same_optimizer:
            kept = dict(kept, optimizer={"state": trainer.optimizer.state_dict()})
        own = [{k: v for k, v in group.items() if k != "params"} for group in trainer.optimizer.param_groups]
        if "freeze" in changed:
            kept = dict(kept, model=dict(kept["model"], frozen=self._frozen()))
        if rates_changed:
            kept = dict(kept, scheduler={"state": trainer.scheduler.state_dict()})
        self._objects.give_back(kept)
        if rates_changed:
            for group, options in zip(trainer.optimizer.param_groups, own):
                group.update(options)
        if changed:
            # None, not zero: the optimizer also has frozen parameters, and its moments would still move them.
            trainer.optimizer.zero_grad(set_to_none=True)

    def _frozen(self):
        """Return the names of the parameters that the trainer has frozen."""
        found = self._model.state_dict(keep_vars=True)
        return [
            name
            for name, value in found.items()
            if isinstance(value, self._torch.nn.Parameter) and not value.requires_grad
        ]

    def _on_device(self, value, device):
        if isinstance(value, self._torch.Tensor):
            return value.to(device, copy=True)
        if type(value) is dict:
            return {key: self._on_device(item, device) for key, item in value.items()}
        return value


def unwrapped(model):
    return getattr(model, "module", model) if type(model).__name__.endswith("DataParallel") else model


def _numbers_of(criterion):
    """Return the plain values of the loss, which may count its own updates. None if there is no loss yet."""
    if criterion is None:
        return None
    return {name: value for name, value in vars(criterion).items() if type(value) in PLAIN}


def give_csv_back(trainer, kept):
    """Restore results.csv, which Ultralytics removes when it creates a trainer. Raise OSError."""
    if kept["csv"] is not None:
        replace_content(trainer.csv, kept["csv"])


def _content(path):
    try:
        with open(str(path), "rb") as file:
            return file.read()
    except OSError:
        return None

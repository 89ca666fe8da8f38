"""Returns the cached free memory of the device every n epochs or optimizer steps.

A device caches memory that its tensors no longer use, by shape; if shapes vary, the cache grows without limit (F08).
Returning it changes no results and costs the time to allocate it again. A CPU has no such cache.
"""

from ...devices import empty_cache, is_accelerator
from .callbacks import wrap_method


class CacheClearing(object):
    def __init__(self, torch, callbacks, overrides):
        self._torch = torch
        self._callbacks = callbacks
        self._epochs = int(overrides.get("epochs") or 0)
        self._steps = int(overrides.get("steps") or 0)
        self._steps_done = 0

    def wrap_trainer(self, trainer_class):
        """Wrap the methods of a trainer class before a trainer is created."""
        if self._steps > 0 and hasattr(trainer_class, "optimizer_step"):
            wrap_method(trainer_class, "optimizer_step", self._around_step)

    def _around_step(self, original, trainer, args, kwargs):
        result = original(trainer, *args, **kwargs)
        self._steps_done += 1
        if self._steps_done % self._steps == 0:
            with self._callbacks.report_errors("clearing the device's cache"):
                self.clear(trainer.device)
        return result

    def _on_train_epoch_end(self, trainer):
        if self._epochs > 0 and (trainer.epoch + 1) % self._epochs == 0:
            self.clear(trainer.device)

    def clear(self, device):
        if is_accelerator(device) and not empty_cache(self._torch, device):
            self._callbacks.note("the device's cache is not cleared", "torch.%s has no empty_cache" % device.type)

"""Runs the assigner, which matches labelled boxes with predictions, on the CPU; everything else stays on the device.

On some devices the assigner fails or is wrong although the rest of the training is correct (F04: a mask selects another
number of rows than it has). It needs no gradient, so only values are copied to the CPU and back, with their dtype
unchanged.
"""

from ...devices import is_accelerator
from .callbacks import wrap_method


class AssignerOnCpu(object):
    def __init__(self, torch, callbacks):
        self._torch = torch
        self._callbacks = callbacks
        self._is_disabled = False

    def watch(self, module):
        """Wrap the assigner when `ultralytics.utils.tal` is imported."""
        if hasattr(module, "TaskAlignedAssigner"):
            wrap_method(module.TaskAlignedAssigner, "forward", self._around_forward)
        else:
            self._callbacks.note(
                "the assigner stays on the device", "this version of ultralytics has no TaskAlignedAssigner"
            )

    def _around_forward(self, original, assigner, args, kwargs):
        device = next((value.device for value in (*args, *kwargs.values()) if self._is_tensor(value)), None)
        if self._is_disabled or device is None or not is_accelerator(device):
            return original(assigner, *args, **kwargs)
        try:
            return self._on_cpu(original, assigner, args, kwargs, device)
        except Exception as error:
            self._is_disabled = True
            self._callbacks.note("the assigner runs on the device again: it failed on the CPU", repr(error)[:300])
        return original(assigner, *args, **kwargs)

    def _on_cpu(self, original, assigner, args, kwargs, device):
        tensors = {name: value for name, value in vars(assigner).items() if self._is_tensor(value)}
        vars(assigner).update({name: value.detach().cpu() for name, value in tensors.items()})
        try:
            results = original(
                assigner,
                *[self._to_cpu(value) for value in args],
                **{name: self._to_cpu(value) for name, value in kwargs.items()},
            )
        finally:
            vars(assigner).update(tensors)
        return tuple(value.to(device) if self._is_tensor(value) else value for value in results)

    def _to_cpu(self, value):
        return value.detach().cpu() if self._is_tensor(value) else value

    def _is_tensor(self, value):
        return isinstance(value, self._torch.Tensor)

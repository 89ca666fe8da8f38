"""A copy of weights, optimizer state and random state from before the first step, on the CPU, and its restoration."""

import os

from ..op_check.cpu_mirror import to_host
from ..snapshots.rng import get_rng_states, set_rng_states

MAX_MEMORY_SHARE = 0.4


class TooLarge(Exception):
    """There is not enough memory for the copy."""


class State(object):
    def __init__(self, torch, optimizer):
        self._torch = torch
        self.optimizer = optimizer
        self.parameters = [p for group in optimizer.param_groups for p in group["params"]]
        needed = sum(p.numel() * p.element_size() for p in self.parameters)
        free = _free_memory()
        if free is not None and needed > MAX_MEMORY_SHARE * free:
            raise TooLarge("there is not enough memory for a copy of the weights, %.1f GB" % (needed / 1e9))
        with torch.no_grad():
            self.weights = [to_host(torch, p.detach()) for p in self.parameters]
        self._groups = [{k: v for k, v in group.items() if k != "params"} for group in optimizer.param_groups]
        self._state = {p: self._copy(obj, keep_device=False) for p, obj in list(optimizer.state.items())}
        self._rng_state = get_rng_states(torch)

    def restore(self):
        torch, optimizer = self._torch, self.optimizer
        with torch.no_grad():
            for parameter, weight in zip(self.parameters, self.weights):
                parameter.copy_(weight.to(parameter.device))
        optimizer.state.clear()
        for key, obj in self._state.items():
            optimizer.state[key] = self._copy(obj, keep_device=True)
        self.restore_rng()

    def restore_rng(self):
        """Restore only the random state."""
        set_rng_states(self._torch, self._rng_state)

    def _copy(self, obj, keep_device):
        """Copy nested tensors to the CPU, or, with `keep_device`, copy the stored tensors back to their devices."""
        torch = self._torch
        if isinstance(obj, torch.Tensor):
            return _CpuCopy(obj.device, to_host(torch, obj.detach()))
        if isinstance(obj, _CpuCopy):
            return obj.value.clone().to(obj.device) if keep_device else obj
        if isinstance(obj, dict):
            return {name: self._copy(value, keep_device) for name, value in obj.items()}
        if isinstance(obj, (list, tuple)):
            return type(obj)(self._copy(value, keep_device) for value in obj)
        return obj


class _CpuCopy(object):
    def __init__(self, device, value):
        self.device, self.value = device, value


def _free_memory():
    try:
        return os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (ValueError, OSError, AttributeError):  # not available on macOS
        return None

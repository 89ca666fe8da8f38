"""Weights, optimizer and random numbers as they were before the first step, on the CPU; and set back to that."""

import os

from ..op_check.cpu_mirror import to_host
from ..snapshots.rng import get_rng_states, set_rng_states

SHARE_OF_FREE_MEMORY = 0.4


class TooLarge(Exception):
    """There is no room to keep it."""


class State(object):
    def __init__(self, torch, optimizer):
        self._torch = torch
        self.optimizer = optimizer
        self.parameters = [p for group in optimizer.param_groups for p in group["params"]]
        needed = sum(p.numel() * p.element_size() for p in self.parameters)
        free = _free_memory()
        if free is not None and needed > SHARE_OF_FREE_MEMORY * free:
            raise TooLarge("its weights take %.1f GB, which there is no room to keep twice" % (needed / 1e9))
        with torch.no_grad():
            self.weights = [to_host(torch, p.detach()) for p in self.parameters]
        self._groups = [{k: v for k, v in group.items() if k != "params"} for group in optimizer.param_groups]
        self._state = {p: self._copy(held, keep_device=False) for p, held in list(optimizer.state.items())}
        self._random = get_rng_states(torch)

    def restore(self):
        torch, optimizer = self._torch, self.optimizer
        with torch.no_grad():
            for parameter, weight in zip(self.parameters, self.weights):
                parameter.copy_(weight.to(parameter.device))
        optimizer.state.clear()
        for key, held in self._state.items():
            optimizer.state[key] = self._copy(held, keep_device=True)
        self.draw_again()

    def draw_again(self):
        """Random numbers alone."""
        set_rng_states(self._torch, self._random)

    def _copy(self, held, keep_device):
        """(device, tensor on the CPU) in what is kept, tensors on their devices in what is given back."""
        torch = self._torch
        if isinstance(held, torch.Tensor):
            return _Kept(held.device, to_host(torch, held.detach()))
        if isinstance(held, _Kept):
            return held.value.clone().to(held.device) if keep_device else held
        if isinstance(held, dict):
            return {name: self._copy(value, keep_device) for name, value in held.items()}
        if isinstance(held, (list, tuple)):
            return type(held)(self._copy(value, keep_device) for value in held)
        return held


class _Kept(object):
    def __init__(self, device, value):
        self.device, self.value = device, value


def _free_memory():
    try:
        return os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (ValueError, OSError, AttributeError):  # macOS does not tell it this way
        return None

"""One tensor around one optimizer step: which of its rows have a gradient, and which of them moved.

Everything stays on the tensor's device as small tensors; the numbers are fetched together by the caller.
"""

import functools

from .expected_update import expected_ulps, kind_of, ulps_by_others
from .tensors import bits_type, by_rows, local

STATES_THAT_FOLLOW_THE_GRADIENT = ("exp_avg", "exp_avg_sq", "momentum_buffer", "square_avg", "sum")
NUMBERS = 5
"""Rows with a gradient, stuck rows, changed elements or rows, whether the state moved, the largest expected update."""
UNKNOWN = -1.0


class Around(object):
    """What is remembered of some rows of a parameter from before a step until after it."""

    def __init__(self, torch, optimizer, parameter, span, *, with_ulps):
        """Of what is given, only copies and a part of the gradient are kept: a step that raises must not keep a model."""
        self._torch = torch
        self._span = span
        self._with_ulps = with_ulps
        weight = self._cut(parameter)
        self.rows = weight.shape[0]
        self._before = weight.clone()
        self._with_gradient = self._gradient = None
        self._states = {
            name: bits_sum(torch, tensor) for name, tensor in self._state_tensors(optimizer, parameter).items()
        }

    def read_gradient(self, gradient):
        """The gradient that the step uses: read before it, or after it where the step itself has it computed."""
        self._with_gradient = rows_with_gradient(self._torch, gradient, self._span)
        self._gradient = self._cut(gradient) if gradient.layout == self._torch.strided else None

    def has_gradient(self):
        return self._with_gradient is not None

    def bytes(self):
        return self._before.numel() * self._before.element_size()

    def rate(self, group, parameter):
        """How far the step moved what it moved here, for each unit of gradient and of learning rate: the least of all rows.
        Infinite where nothing moved or the gradient is sparse. To be asked before `numbers`.
        """
        torch = self._torch
        weight = self._cut(parameter)
        if self._gradient is None:
            return torch.full((), float("inf"), device=weight.device)
        moved = (weight.float() - self._before.float()).abs().reshape(self.rows, -1).amax(1)
        length = self._gradient.float().abs().reshape(self.rows, -1).amax(1)
        rates = torch.where((moved > 0) & (length > 0), moved / length, torch.full_like(moved, float("inf")))
        return rates.amin() / rate_of(group)

    def numbers(self, optimizer, group, parameter, rate=None):
        """Five numbers as tensors without dimension, on the parameter's device. `rate` is what moved others, where the
        optimizer's own update is not known.
        """
        torch = self._torch
        weight = self._cut(parameter)
        changed = changed_rows(torch, weight, self._before)
        self._before = None
        stuck = self._with_gradient & (changed == 0)
        found_inf = getattr(optimizer, "found_inf", None)
        if found_inf is not None:  # a fused step that a gradient scaler told to do nothing
            stuck = stuck & (found_inf.reshape(()) == 0)
        return (
            self._with_gradient.sum(dtype=torch.float32),
            stuck.sum(dtype=torch.float32),
            changed.sum(dtype=torch.float32),
            self._state_moved(self._state_tensors(optimizer, parameter), weight.device),
            self._largest_ulps((optimizer, group, parameter), weight, stuck, rate),
        )

    def _cut(self, tensor):
        return by_rows(self._torch, local(tensor))[self._span]

    def _state_tensors(self, optimizer, parameter):
        """The parts of the optimizer's state that lie beside these rows, by name."""
        state = optimizer.state.get(parameter) or {}
        shape = parameter.shape
        beside = {}
        for name, value in state.items():
            if getattr(value, "shape", None) == shape and (value.is_floating_point() or value.is_complex()):
                beside[name] = self._cut(value)
        follow = {name: beside[name] for name in STATES_THAT_FOLLOW_THE_GRADIENT if name in beside}
        return follow or beside

    def _state_moved(self, after, device):
        torch = self._torch
        if not after:
            return unknown(torch, device)
        moved = [bits_sum(torch, tensor) != self._states.get(name, 0) for name, tensor in after.items()]
        return torch.stack(moved).all().to(device=device, dtype=torch.float32)

    def _largest_ulps(self, held, weight, stuck, rate):
        torch = self._torch
        optimizer, group, parameter = held
        kind = kind_of(optimizer)
        ulps = None
        if self._gradient is not None and self._with_ulps and kind is not None:
            state = dict(optimizer.state.get(parameter) or {})
            state.update(self._state_tensors(optimizer, parameter))
            if "max_exp_avg_sq" in state:
                state["max_exp_avg_sq"] = self._cut(state["max_exp_avg_sq"])
            ulps = expected_ulps(torch, (kind, group), weight, self._gradient, state)
        elif self._gradient is not None and self._with_ulps and rate is not None:
            ulps = ulps_by_others(torch, rate * rate_of(group), weight, self._gradient)
        if ulps is None:
            return unknown(torch, weight.device)
        largest = ulps.reshape(self.rows, -1).amax(1).nan_to_num(0.0)
        largest = torch.where(stuck, largest, torch.zeros_like(largest)).amax().clamp(min=0).float()
        return largest if rate is None else torch.where(torch.isinf(rate), unknown(torch, weight.device), largest)


def rate_of(group):
    """A group's learning rate, or 1.0 where it has none that can be read for nothing."""
    lr = group.get("lr")
    return float(lr) if isinstance(lr, (int, float)) and lr > 0 else 1.0


@functools.lru_cache(maxsize=None)
def unknown(torch, device):
    return torch.full((), UNKNOWN, dtype=torch.float32, device=device)


def rows_with_gradient(torch, gradient, span):
    """A boolean for each row: whether any element of its gradient is not zero."""
    if gradient.layout != torch.strided:
        return _rows_with_sparse_gradient(torch, gradient.detach())[span]
    rows = by_rows(torch, local(gradient))[span]
    if rows.dim() == 1:
        return rows != 0
    flat = rows.reshape(rows.shape[0], -1)
    # On a CPU the sum of magnitudes is many times faster than any(); it cannot be zero unless all of them are.
    return flat.abs().sum(1) != 0 if rows.is_cpu else (flat != 0).any(1)


def _rows_with_sparse_gradient(torch, gradient):
    values = gradient._values()
    alive = (values.reshape(values.shape[0], -1) != 0).any(1)
    counts = torch.zeros(gradient.shape[0], dtype=torch.int32, device=values.device)
    return counts.index_add_(0, gradient._indices()[0], alive.to(torch.int32)) != 0


def changed_rows(torch, after, before):
    """A number for each row that is zero exactly where nothing changed."""
    if not after.is_cpu:
        different = after != before
        return different if after.dim() == 1 else different.reshape(after.shape[0], -1).any(1)
    different = torch.ne(after, before, out=before)
    return different if after.dim() == 1 else different.reshape(after.shape[0], -1).sum(1)


def bits_sum(torch, tensor):
    """A number that changes when the tensor's bits change, but for rare coincidence."""
    bits = bits_type(torch, tensor.dtype)
    wide = torch.int64 if tensor.dtype == torch.float64 else torch.int32
    return tensor.view(bits).sum(dtype=wide)

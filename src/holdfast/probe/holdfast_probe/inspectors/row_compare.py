"""Comparison of one tensor before and after an optimizer step: which rows have a gradient, and which of them changed.

All results stay on the tensor's device as small tensors. The caller fetches the numbers together.
"""

import functools
import weakref

from .expected_update import expected_ulps, optimizer_kind, ulps_from_others
from .tensors import as_rows, bits_type, to_local

STATES_THAT_DEPEND_ON_GRADIENT = ("exp_avg", "exp_avg_sq", "momentum_buffer", "square_avg", "sum")
NUMBERS = 5
"""Rows with a gradient, stuck rows, changed elements or rows, whether the state changed, the largest expected update."""
UNKNOWN = -1.0


class StepComparison(object):
    """Some rows of a parameter, copied before a step and compared after it."""

    def __init__(self, torch, optimizer, parameter, position, span, *, suspected):
        """Copy the rows. Only copies and a part of the gradient are kept: a step that raises must not keep a model
        alive. If the parameter is suspected not to change, its expected update is computed too.
        """
        self.parameter = weakref.ref(parameter)
        self.position = position
        """The parameter's position in the optimizer."""
        self.span = span
        self.suspected = suspected
        self._torch = torch
        weight = self._select_rows(parameter)
        self.rows = weight.shape[0]
        self._before = weight.clone()
        self._with_gradient = self._gradient = None
        self._states = {
            name: sum_bits(torch, tensor) for name, tensor in self._state_tensors(optimizer, parameter).items()
        }

    def read_gradient(self, gradient):
        """Read the gradient that the step uses: before the step, or after it if the step itself computes the gradient."""
        self._with_gradient = rows_with_gradient(self._torch, gradient, slice(*self.span))
        self._gradient = self._select_rows(gradient) if gradient.layout == self._torch.strided else None

    def has_gradient(self):
        return self._with_gradient is not None

    def bytes(self):
        return self._before.numel() * self._before.element_size()

    def rate(self, group, parameter):
        """Return the smallest change of a row per unit of gradient and learning rate, before `numbers` is called. It is
        infinite if nothing changed or the gradient is sparse.
        """
        torch = self._torch
        weight = self._select_rows(parameter)
        if self._gradient is None:
            return torch.full((), float("inf"), device=weight.device)
        moved = (weight.float() - self._before.float()).abs().reshape(self.rows, -1).amax(1)
        length = self._gradient.float().abs().reshape(self.rows, -1).amax(1)
        rates = torch.where((moved > 0) & (length > 0), moved / length, torch.full_like(moved, float("inf")))
        return rates.amin() / get_rate(group)

    def numbers(self, optimizer, group, parameter, rate=None):
        """Return five numbers as 0-dim tensors on the parameter's device, and drop the copies. `rate` is the rate of the
        other parameters, for an optimizer whose update rule is unknown.
        """
        torch = self._torch
        weight = self._select_rows(parameter)
        changed = changed_rows(torch, weight, self._before)
        self._before = None
        stuck = self._with_gradient & (changed == 0)
        found_inf = getattr(optimizer, "found_inf", None)
        if found_inf is not None:  # a fused step that the gradient scaler skipped
            stuck = stuck & (found_inf.reshape(()) == 0)
        states = self._state_tensors(optimizer, parameter)
        numbers = (
            self._with_gradient.sum(dtype=torch.float32),
            stuck.sum(dtype=torch.float32),
            changed.sum(dtype=torch.float32),
            self._state_moved(states, weight.device),
            self._largest_ulps((optimizer, group, parameter), weight, states, stuck, rate),
        )
        self._with_gradient = self._gradient = self._states = None
        return numbers

    def _select_rows(self, tensor):
        return as_rows(self._torch, to_local(tensor))[slice(*self.span)]

    def _state_tensors(self, optimizer, parameter):
        """Return the parts of the optimizer's state that belong to these rows, by name."""
        states = {
            name: self._select_rows(value)
            for name, value in (optimizer.state.get(parameter) or {}).items()
            if getattr(value, "shape", None) == parameter.shape and (value.is_floating_point() or value.is_complex())
        }
        follow = {name: states[name] for name in STATES_THAT_DEPEND_ON_GRADIENT if name in states}
        return follow or states

    def _state_moved(self, after, device):
        torch = self._torch
        if not after:
            return unknown_value(torch, device)
        moved = [sum_bits(torch, tensor) != self._states.get(name, 0) for name, tensor in after.items()]
        return torch.stack(moved).all().to(device=device, dtype=torch.float32)

    def _largest_ulps(self, owner, weight, states, stuck, rate):
        torch = self._torch
        optimizer, group, parameter = owner
        kind = optimizer_kind(optimizer)
        unknown = unknown_value(torch, weight.device)
        ulps = None
        if self._gradient is not None and self.suspected and kind is not None:
            states = dict(optimizer.state.get(parameter) or {}, **states)
            if "max_exp_avg_sq" in states:
                states["max_exp_avg_sq"] = self._select_rows(states["max_exp_avg_sq"])
            ulps = expected_ulps(torch, (kind, group), weight, self._gradient, states)
        elif self._gradient is not None and self.suspected and rate is not None:
            ulps = ulps_from_others(torch, rate * get_rate(group), weight, self._gradient)
        if ulps is None:
            return unknown
        largest = ulps.reshape(self.rows, -1).amax(1).nan_to_num(0.0)
        largest = torch.where(stuck, largest, torch.zeros_like(largest)).amax().clamp(min=0).float()
        return largest if rate is None else torch.where(torch.isinf(rate), unknown, largest)


def get_rate(group):
    """Return a group's learning rate, or 1.0 if it cannot be read for free."""
    lr = group.get("lr")
    return float(lr) if isinstance(lr, (int, float)) and lr > 0 else 1.0


@functools.lru_cache(maxsize=None)
def unknown_value(torch, device):
    return torch.full((), UNKNOWN, dtype=torch.float32, device=device)


def rows_with_gradient(torch, gradient, span):
    """Return a boolean for each row: whether any element of its gradient is non-zero."""
    if gradient.layout != torch.strided:
        return _rows_with_sparse_gradient(torch, gradient.detach())[span]
    rows = as_rows(torch, to_local(gradient))[span]
    if rows.dim() == 1:
        return rows != 0
    flat = rows.reshape(rows.shape[0], -1)
    # On a CPU the sum of magnitudes is many times faster than any(). It is zero only if all of them are.
    return flat.abs().sum(1) != 0 if rows.is_cpu else (flat != 0).any(1)


def _rows_with_sparse_gradient(torch, gradient):
    values = gradient._values()
    nonzero = (values.reshape(values.shape[0], -1) != 0).any(1)
    counts = torch.zeros(gradient.shape[0], dtype=torch.int32, device=values.device)
    return counts.index_add_(0, gradient._indices()[0], nonzero.to(torch.int32)) != 0


def changed_rows(torch, after, before):
    """Return a number for each row that is zero exactly if nothing changed."""
    if not after.is_cpu:
        different = after != before
        return different if after.dim() == 1 else different.reshape(after.shape[0], -1).any(1)
    different = torch.ne(after, before, out=before)
    return different if after.dim() == 1 else different.reshape(after.shape[0], -1).sum(1)


def sum_bits(torch, tensor):
    """Return a number that changes when the tensor's bits change, except for rare collisions."""
    bits = bits_type(torch, tensor.dtype)
    wide = torch.int64 if tensor.dtype == torch.float64 else torch.int32
    return tensor.view(bits).sum(dtype=wide)

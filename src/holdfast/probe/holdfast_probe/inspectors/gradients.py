"""Norm and finiteness of the gradients that a step uses, as often as the budget allows.

The gradients are read before the step, or after it if a closure computes them inside the step.
"""

import math
import weakref

from ..param_names import live
from . import Inspector
from .closures import Closures
from .rate_limit import RateLimit
from .tensors import to_local, trainable_parameters

REGULAR_SECONDS = 10.0
UNUSUAL_SECONDS = 1.0
UNUSUAL_AT_FIRST = 5
"""The first this many readings with missing, zero or non-finite gradients are reported immediately."""
SPOT_CHECK_EVERY = 12
MAX_SPOT_CHECK = 1 << 16
MAX_NAMES = 8


class GradientsInspector(Inspector):
    name = "gradients"

    def __init__(self, probe, names, fair_share):
        super().__init__(probe)
        self._names = names
        self._fair_share = fair_share
        self._limits = {}  # optimizer id -> its rate limits for regular and for unusual gradients
        self._closures = Closures()
        self._empty = None  # a reading that found no gradient before a step
        self._next_spot_check = 0
        self._were_zero = False
        self._smallest = None  # weak reference to the smallest parameter that has a gradient

    def backward_begins(self, loss, first):
        self._closures.backward_begins()

    def step_begins(self, optimizer, is_primary):
        self._closures.step_begins(optimizer)
        self._empty = None
        if not self._closures.uses_closure(optimizer):
            give_norm = self.probe.steps.record.expect_norm if is_primary else None
            self._read_if_allowed(optimizer, Reading(self.probe.step + 1, optimizer, is_primary), give_norm)

    def step_ended(self, optimizer, is_primary):
        empty, self._empty = self._empty, None
        computed_inside = self._closures.step_ended() > 0
        if empty is not None and not computed_inside:
            computed_inside = any(parameter.grad is not None for parameter in trainable_parameters(optimizer))
            if not computed_inside:
                self._handle_norms(empty, [], None)
        if computed_inside:
            self._read_if_allowed(optimizer, Reading(self.probe.step + (not is_primary), optimizer, is_primary), None)

    def step_over(self, optimizer_id):
        self._closures.step_over()

    def _read_if_allowed(self, optimizer, reading, expect_norm):
        cost = self._fair_share.typical_cost(self.name)
        if self._fair_share.allows(self.name, cost) or self._looks_unusual(optimizer, reading):
            with self._fair_share.spending(self.name), self.probe.torch.no_grad():
                self._read_gradients(optimizer, reading, expect_norm)

    def _looks_unusual(self, optimizer, reading):
        """Read one small gradient now and then if the budget does not allow reading all. If it is zero, all are read, and
        once more when it is no longer zero.
        """
        if not reading.is_primary or reading.step < self._next_spot_check:
            return False
        self._next_spot_check = reading.step + SPOT_CHECK_EVERY
        parameter = None if self._smallest is None else self._smallest()
        if parameter is None or parameter.grad is None:
            with_gradient = [p for p in trainable_parameters(optimizer) if p.grad is not None and p.grad.is_cpu]
            with_gradient = [p for p in with_gradient if p.grad.layout == self.probe.torch.strided and p.numel()]
            if not with_gradient:
                return False
            parameter = min(with_gradient, key=lambda p: p.numel())
            self._smallest = weakref.ref(parameter)
        if parameter.numel() > MAX_SPOT_CHECK:
            return False
        return self._were_zero or not bool(to_local(parameter.grad).any())

    def _read_gradients(self, optimizer, reading, expect_norm):
        parameters = trainable_parameters(optimizer)
        with_gradient = [parameter for parameter in parameters if parameter.grad is not None]
        gradients = [parameter.grad for parameter in with_gradient]
        reading.missing = len(parameters) - len(with_gradient)
        if len({gradient.device for gradient in gradients}) > 1:
            self.probe.miss(self.name, "the gradients are on several devices")
            return
        if not with_gradient:
            self._empty = reading
            return
        reading.parameters = [weakref.ref(parameter) for parameter in with_gradient]
        values = [get_values(self.probe.torch, gradient) for gradient in gradients]
        norms = compute_norms(self.probe.torch, values, getattr(optimizer, "grad_scale", None))
        give_norm = None if expect_norm is None else expect_norm()
        self.probe.scalars.later(norms, lambda values: self._handle_norms(reading, values, give_norm))

    def _handle_norms(self, reading, values, give_norm):
        total = total_norm(values)
        if give_norm is not None:
            give_norm([total] if values else [])
        if len(values) != len(reading.parameters):
            return
        self.probe.see(self.name)
        nonfinite = [index for index, value in enumerate(values) if not math.isfinite(value)]
        zero = sum(value == 0 for value in values)
        if reading.is_primary:
            self._were_zero = bool(values) and zero == len(values)
        regular, unusual = self._limits.setdefault(
            reading.optimizer, (RateLimit(1, REGULAR_SECONDS), RateLimit(UNUSUAL_AT_FIRST, UNUSUAL_SECONDS))
        )
        if not (unusual if nonfinite or zero == len(values) else regular).try_acquire():
            return
        self.probe.emit(
            "gradients",
            step=reading.step,
            norm=total,
            tensors=len(values),
            missing=reading.missing,
            zero=zero,
            nonfinite=len(nonfinite),
            nonfinite_names=self._names.several(live(reading.parameters[index] for index in nonfinite[:MAX_NAMES])),
            other_optimizer=not reading.is_primary,
        )


class Reading(object):
    """What is kept until the values arrive, which can take a second on a device. Parameters are referenced weakly."""

    def __init__(self, step, optimizer, is_primary):
        self.step = step
        self.optimizer = id(optimizer)
        self.is_primary = is_primary
        self.parameters = []
        self.missing = 0


def total_norm(values):
    if all(map(math.isfinite, values)):
        return math.sqrt(math.fsum(value * value for value in values))
    return math.nan if any(map(math.isnan, values)) else math.inf


def get_values(torch, gradient):
    if gradient.layout != torch.strided:
        return gradient.detach()._values()
    return gradient if type(gradient) is torch.Tensor else to_local(gradient)


def compute_norms(torch, gradients, scale=None):
    """Return one norm for each tensor, in float32, on their device. A fused step divides the gradients by the gradient
    scaler's scale itself. The scaler grows it as far as possible, so the square of a scaled gradient may overflow.
    """
    if scale is not None:
        scale = scale.reshape(())
        return torch.stack([torch.linalg.vector_norm(gradient.float() / scale) for gradient in gradients])
    half = (torch.float16, torch.bfloat16)
    dtypes = {gradient.dtype for gradient in gradients}
    if any(dtype in half or dtype.is_complex for dtype in dtypes):
        # The norm of a half-precision tensor is also half-precision, and overflows long before its elements do.
        norms = [
            torch.linalg.vector_norm(gradient, dtype=torch.float32 if gradient.dtype in half else None)
            for gradient in gradients
        ]
    else:
        norms = torch._foreach_norm(gradients)
    return torch.stack(list(norms)).to(torch.float32)

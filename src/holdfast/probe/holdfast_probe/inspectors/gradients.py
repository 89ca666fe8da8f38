"""Norm and finiteness of the gradients that a step uses, as often as the budget allows.

They are read before the step, or after it where a closure computes them inside the step.
"""

import math
import weakref

from . import Inspector
from .closures import Closures
from .rate_limit import RateLimit
from .tensors import local, trainable

ORDINARY_SECONDS = 10.0
ODD_SECONDS = 1.0
ODD_AT_FIRST = 5
"""So many looks at gradients that are missing, zero or not finite are told at once."""
GLANCE_EVERY = 12
MAX_GLANCE = 1 << 16
MAX_NAMES = 8


class GradientsInspector(Inspector):
    name = "gradients"

    def __init__(self, probe, names, turns):
        super().__init__(probe)
        self._names = names
        self._turns = turns
        self._paces = {}  # id of an optimizer -> its paces for ordinary and for odd gradients
        self._closures = Closures()
        self._empty = None  # a look that found no gradient before a step
        self._glance_at = 0
        self._were_zero = False
        self._smallest = None  # weak reference to the smallest parameter that has a gradient

    def backward_begins(self, loss, first):
        self._closures.backward_begins()

    def step_begins(self, optimizer, clock):
        self._closures.step_begins(optimizer)
        self._empty = None
        if not self._closures.has(optimizer):
            give_norm = self.probe.steps.record.expect_norm if clock else None
            self._look_if_allowed(optimizer, Sighting(self.probe.step + 1, optimizer, clock), give_norm)

    def step_ended(self, optimizer, clock):
        empty, self._empty = self._empty, None
        made_inside = self._closures.step_ended() > 0
        if empty is not None and not made_inside:
            made_inside = any(parameter.grad is not None for parameter in trainable(optimizer))
            if not made_inside:
                self._learn(empty, [], None)
        if made_inside:
            self._look_if_allowed(optimizer, Sighting(self.probe.step + (not clock), optimizer, clock), None)

    def step_over(self, optimizer_id):
        self._closures.step_over()

    def _look_if_allowed(self, optimizer, sighting, expect_norm):
        if self._turns.allows(self.name, self._turns.typical(self.name)) or self._seems_odd(optimizer, sighting):
            with self._turns.spending(self.name), self.probe.torch.no_grad():
                self._look(optimizer, sighting, expect_norm)

    def _seems_odd(self, optimizer, sighting):
        """Where a look cannot be paid for: now and then one small gradient is read. If it is zero all of them are read, and
        once more when it is not any longer.
        """
        if not sighting.clock or sighting.step < self._glance_at:
            return False
        self._glance_at = sighting.step + GLANCE_EVERY
        parameter = None if self._smallest is None else self._smallest()
        if parameter is None or parameter.grad is None:
            with_gradient = [p for p in trainable(optimizer) if p.grad is not None and p.grad.is_cpu]
            with_gradient = [p for p in with_gradient if p.grad.layout == self.probe.torch.strided and p.numel()]
            if not with_gradient:
                return False
            parameter = min(with_gradient, key=lambda p: p.numel())
            self._smallest = weakref.ref(parameter)
        if parameter.numel() > MAX_GLANCE:
            return False
        return self._were_zero or not bool(local(parameter.grad).any())

    def _look(self, optimizer, sighting, expect_norm):
        parameters = trainable(optimizer)
        pairs = [(parameter, parameter.grad) for parameter in parameters]
        with_gradient = [parameter for parameter, gradient in pairs if gradient is not None]
        gradients = [gradient for _, gradient in pairs if gradient is not None]
        sighting.missing = len(parameters) - len(with_gradient)
        if len({gradient.device for gradient in gradients}) > 1:
            self.probe.see(self.name, "not seen: the gradients lie on several devices")
            return
        if not with_gradient:
            self._empty = sighting
            return
        sighting.parameters = [weakref.ref(parameter) for parameter in with_gradient]
        values = [values_of(self.probe.torch, gradient) for gradient in gradients]
        scale = getattr(optimizer, "grad_scale", None)
        lengths = norms(self.probe.torch, values) if scale is None else scaled_norms(self.probe.torch, values, scale)
        give_norm = None if expect_norm is None else expect_norm()
        self.probe.scalars.later(lengths, lambda values: self._learn(sighting, values, give_norm))

    def _learn(self, sighting, values, give_norm):
        total = total_norm(values)
        if give_norm is not None:
            give_norm([total] if values else [])
        if len(values) != len(sighting.parameters):
            return
        self.probe.see(self.name)
        nonfinite = [index for index, value in enumerate(values) if not math.isfinite(value)]
        zero = sum(value == 0 for value in values)
        if sighting.clock:
            self._were_zero = bool(values) and zero == len(values)
        ordinary, odd = self._paces.setdefault(
            sighting.optimizer, (RateLimit(1, ORDINARY_SECONDS), RateLimit(ODD_AT_FIRST, ODD_SECONDS))
        )
        if not (odd if nonfinite or zero == len(values) else ordinary).due():
            return
        named = [sighting.parameters[index]() for index in nonfinite[:MAX_NAMES]]
        self.probe.emit(
            "gradients",
            step=sighting.step,
            norm=total,
            tensors=len(values),
            missing=sighting.missing,
            zero=zero,
            nonfinite=len(nonfinite),
            nonfinite_names=[self._names.of(parameter) for parameter in named if parameter is not None],
            other_optimizer=not sighting.clock,
        )


class Sighting(object):
    """What must be remembered until the values arrive. Parameters weakly: on a device that can take a second."""

    def __init__(self, step, optimizer, clock):
        self.step = step
        self.optimizer = id(optimizer)
        self.clock = clock
        self.parameters = []
        self.missing = 0


def total_norm(values):
    if all(map(math.isfinite, values)):
        return math.sqrt(math.fsum(value * value for value in values))
    return math.nan if any(map(math.isnan, values)) else math.inf


def values_of(torch, gradient):
    if type(gradient) is torch.Tensor and gradient.layout == torch.strided:
        return gradient
    if gradient.layout != torch.strided:
        return gradient.detach()._values()
    return local(gradient)


def scaled_norms(torch, gradients, scale):
    """A fused step divides by the gradient scaler's scale itself. Scales grow as far as they can: the square of what is
    scaled may be too large for any number.
    """
    scale = scale.reshape(())
    return torch.stack([torch.linalg.vector_norm(gradient.float() / scale) for gradient in gradients])


def norms(torch, gradients):
    """One norm for each tensor, in float32, on their device."""
    half = (torch.float16, torch.bfloat16)
    dtypes = {gradient.dtype for gradient in gradients}
    if any(dtype in half or dtype.is_complex for dtype in dtypes):
        # The norm of a half-precision tensor is half-precision too, and overflows long before its elements do.
        each = [
            torch.linalg.vector_norm(gradient, dtype=torch.float32 if gradient.dtype in half else None)
            for gradient in gradients
        ]
    else:
        each = torch._foreach_norm(gradients)
    return torch.stack(list(each)).to(torch.float32)

"""One experiment: a number of steps on one batch, with one learning rate, from the weights before the first step."""

import math
import time

from ..op_check.cpu_mirror import to_host
from .loader_override import REPEATED

MIN_STEPS = 12
"""Until this many steps, the experiment may take twice its time."""
MIN_STEPS_IF_FALLING = 12
"""The experiment may end after this many steps if the loss has fallen by half."""
WARMUP_STEPS = 5
"""Steps until the full rate is reached: untrained weights may diverge at the full rate."""
GRADIENT_STEPS = 3
"""Steps in which the gradients of the tensors are read."""
MAX_NAMES = 12


class OverfitCurve(object):
    def __init__(self, torch, state, names, mode, factor, rates, steps, seconds, is_drawn=False):
        self._torch, self._state, self._names = torch, state, names
        self.mode, self.factor, self._is_drawn = mode, factor, is_drawn
        self._rates, self._steps = rates, steps
        self._seconds, self._until = seconds, time.monotonic() + seconds
        self._gradients = {}
        """Parameter number -> its largest gradient so far."""
        self.losses = []

    def step_begins(self):
        warmup = min(1.0, (len(self.losses) + 1.0) / WARMUP_STEPS)
        for group, rate in zip(self._state.optimizer.param_groups, [rate * warmup for rate in self._rates]):
            if isinstance(group.get("lr"), self._torch.Tensor):
                group["lr"].fill_(rate)
            elif "lr" in group:
                group["lr"] = rate
        if len(self.losses) < GRADIENT_STEPS and self.mode == REPEATED:
            for number, parameter in enumerate(self._state.parameters):
                if parameter.grad is not None:
                    gradient = parameter.grad.detach()
                    gradient = gradient.coalesce().values() if gradient.is_sparse else gradient
                    largest = float(to_host(self._torch, gradient).double().abs().max()) if gradient.numel() else 0.0
                    self._gradients[number] = max(self._gradients.get(number, 0.0), largest)

    def step_ended(self, loss):
        self.losses.append(float("nan") if loss is None else loss)
        if self._is_drawn:
            self._state.restore_rng()

    def is_over(self, now):
        done = len(self.losses)
        if done >= self._steps or not math.isfinite(self.losses[-1]):
            return True
        if now > self._until + (0.0 if done >= MIN_STEPS else self._seconds):
            return True
        return self.mode == REPEATED and done >= MIN_STEPS_IF_FALLING and self.loss_drop > 0.5

    @property
    def loss_drop(self):
        """The relative drop of the loss since its first value; below 0 if it rose."""
        first, last = self.losses[0], self.losses[-3:]
        late = sum(last) / len(last)
        if not math.isfinite(late):
            return -1.0
        return (first - late) / abs(first) if first else 0.0

    @property
    def is_constant(self):
        return max(self.losses) == min(self.losses)

    def next_factor(self):
        """Return the next factor to try: lower if the loss rose, else higher."""
        if self.factor < 1.0 or (self.factor == 1.0 and not self.loss_drop > -0.02):
            return self.factor / 10.0
        return self.factor * 10.0

    def as_fields(self):
        fields = {"mode": self.mode, "factor": self.factor, "rates": self._rates[:8], "losses": self.losses}
        if self.mode == REPEATED:
            fields["moved"] = self._count_moved()
        return fields

    def _count_moved(self):
        """Find the tensors that got a gradient but did not change, although the update was large enough."""
        torch, state = self._torch, self._state
        unchanged, moved, without, uncertain = [], 0, 0, 0
        group_index = [n for n, group in enumerate(state.optimizer.param_groups) for _ in group["params"]]
        for number, (parameter, before) in enumerate(zip(state.parameters, state.weights)):
            gradient = self._gradients.get(number, 0.0)
            if not parameter.requires_grad or not gradient > 0.0:
                without += 1
            elif not torch.equal(to_host(torch, parameter.detach()), before):
                moved += 1
            elif _is_too_small(torch, before, gradient * self._rates[group_index[number]]):
                uncertain += 1
            else:
                unchanged.append(number)
        names = [self._names.of(state.parameters[number]) for number in unchanged[:MAX_NAMES]]
        return {
            "moved": moved,
            "still": len(unchanged),
            "names": names,
            "without_gradient": without,
            "too_small": uncertain,
        }


def _is_too_small(torch, weight, update):
    """Return whether the update could be lost in the rounding of the weight."""
    if not weight.is_floating_point() or weight.dtype in (torch.float16, torch.bfloat16) or not weight.numel():
        return True
    return not update > 4.0 * torch.finfo(weight.dtype).eps * float(weight.double().abs().max())

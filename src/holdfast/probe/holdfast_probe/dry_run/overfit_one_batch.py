"""One experiment: so many steps on one batch, at one rate, from the weights before the first step."""

import math
import time

from ..op_check.cpu_mirror import to_host
from .loader_override import AGAIN

MIN_STEPS = 12
"""Up to these it may take twice its time."""
ENOUGH_STEPS = 12
"""It may end there, where the loss has fallen by half."""
RAMP = 5
"""Steps until the rate is reached: untrained weights do not stand a full one at once."""
LOOKED_AT_FIRST = 3
"""Steps in which it is asked which tensors get a gradient."""
MAX_NAMED = 12


class OverfitCurve(object):
    def __init__(self, torch, state, names, mode, factor, rates, steps, seconds, drawn=False):
        self._torch, self._state, self._names = torch, state, names
        self.mode, self.factor, self._drawn = mode, factor, drawn
        self._rates, self._steps = rates, steps
        self._seconds, self._until = seconds, time.monotonic() + seconds
        self._gradients = {}
        """Number of a parameter -> the largest gradient of it that was seen."""
        self.losses = []

    def step_begins(self):
        share = min(1.0, (len(self.losses) + 1.0) / RAMP)
        for group, rate in zip(self._state.optimizer.param_groups, [rate * share for rate in self._rates]):
            if isinstance(group.get("lr"), self._torch.Tensor):
                group["lr"].fill_(rate)
            elif "lr" in group:
                group["lr"] = rate
        if len(self.losses) < LOOKED_AT_FIRST and self.mode == AGAIN:
            for number, parameter in enumerate(self._state.parameters):
                if parameter.grad is not None:
                    gradient = parameter.grad.detach()
                    gradient = gradient.coalesce().values() if gradient.is_sparse else gradient
                    largest = float(to_host(self._torch, gradient).double().abs().max()) if gradient.numel() else 0.0
                    self._gradients[number] = max(self._gradients.get(number, 0.0), largest)

    def step_ended(self, loss):
        self.losses.append(float("nan") if loss is None else loss)
        if self._drawn:
            self._state.draw_again()

    def is_over(self, now):
        done = len(self.losses)
        if done >= self._steps or not math.isfinite(self.losses[-1]):
            return True
        if now > self._until + (0.0 if done >= MIN_STEPS else self._seconds):
            return True
        return self.mode == AGAIN and done >= ENOUGH_STEPS and self.fall > 0.5

    @property
    def fall(self):
        """How much of its first value the loss has lost; below 0 where it rose."""
        first, last = self.losses[0], self.losses[-3:]
        late = sum(last) / len(last)
        if not math.isfinite(late):
            return -1.0
        return (first - late) / abs(first) if first else 0.0

    @property
    def is_constant(self):
        return max(self.losses) == min(self.losses)

    def another_factor(self):
        """Where the loss rose, a lower rate is worth a try, else a higher one."""
        if self.factor < 1.0 or (self.factor == 1.0 and not self.fall > -0.02):
            return self.factor / 10.0
        return self.factor * 10.0

    def told(self):
        fields = {"mode": self.mode, "factor": self.factor, "rates": self._rates[:8], "losses": self.losses}
        if self.mode == AGAIN:
            fields["moved"] = self._moved()
        return fields

    def _moved(self):
        """Which tensors that got a gradient are still what they were, although the step was large enough to show."""
        torch, state = self._torch, self._state
        still, moved, without, unsure = [], 0, 0, 0
        place = [n for n, group in enumerate(state.optimizer.param_groups) for _ in group["params"]]
        for number, (parameter, before) in enumerate(zip(state.parameters, state.weights)):
            gradient = self._gradients.get(number, 0.0)
            if not parameter.requires_grad or not gradient > 0.0:
                without += 1
            elif not torch.equal(to_host(torch, parameter.detach()), before):
                moved += 1
            elif _too_small(torch, before, gradient * self._rates[place[number]]):
                unsure += 1
            else:
                still.append(number)
        names = [self._names.of(state.parameters[number]) for number in still[:MAX_NAMED]]
        return {"moved": moved, "still": len(still), "names": names, "without_gradient": without, "too_small": unsure}


def _too_small(torch, weight, update):
    """Whether such an update could be lost in the rounding of such weights."""
    if not weight.is_floating_point() or weight.dtype in (torch.float16, torch.bfloat16) or not weight.numel():
        return True
    return not update > 4.0 * torch.finfo(weight.dtype).eps * float(weight.double().abs().max())

"""Gradients left over from the step before.

They are read at the entry of a backward: what an optimizer cleared must be gone there. People clear at different places,
and with several optimizers one's gradients may rightly lie around while another's loss is computed. So an optimizer's
gradients count as left over only when no backward between two of its steps began with clean ones. Parameters that no loss
uses do not count: their gradients are copied over them (master weights), not added to.
"""

import weakref

from . import Inspector
from .rate_limit import RateLimit
from .tensors import local

TENSORS_AT_FIRST = 64
TENSORS = 8
MAX_ELEMENTS = 1 << 16
LOOKS_AT_FIRST = 5
MAX_NAMES = 8
SELDOM_SECONDS = 60.0


class StaleGradientsInspector(Inspector):
    name = "gradient clearing"

    def __init__(self, probe, names, graph=None):
        super().__init__(probe)
        self._names = names
        self._graph = graph
        self._intervals = {}  # id of an optimizer -> the interval since its last step, while it is watched
        self._inspectors = 0
        self._clean = {}  # id of an optimizer -> how many of its intervals were clean
        self._pace = RateLimit(3, SELDOM_SECONDS)

    def backward_begins(self, loss, first):
        clock = self.probe.primary_optimizer
        if first and clock is not None:
            self._intervals.setdefault(id(clock), Interval(self.probe.step))
        for optimizer in self.probe.optimizers:
            interval = self._intervals.get(id(optimizer))
            if interval is None or interval.clean:
                continue
            if self.probe.step - interval.opened_at > 1:  # steps in between were not watched
                del self._intervals[id(optimizer)]
            else:
                self._look(optimizer, interval)

    def step_begins(self, optimizer, clock):
        interval = self._intervals.pop(id(optimizer), None)
        if interval is not None:
            interval.close(self.probe.step + 1)
            interval.owner = id(optimizer)
            self._judge(interval)

    def step_ended(self, optimizer, clock):
        if not clock:  # the clock's interval begins with the first backward after its step
            self._intervals[id(optimizer)] = Interval(self.probe.step)

    def _look(self, optimizer, interval):
        budget = self.probe.budget
        at_first = self._inspectors < LOOKS_AT_FIRST
        chosen = spread_out(optimizer, TENSORS_AT_FIRST if at_first else TENSORS, self._inspectors)
        with_gradient = [parameter for parameter in chosen if parameter.grad is not None]
        if not with_gradient:
            self._inspectors += 1
            interval.clean = True
            self.probe.see(self.name)
            return
        if not at_first and not budget.allows(budget.expected(self.name)):
            self._intervals.pop(id(optimizer), None)
            return
        self._inspectors += 1
        torch = self.probe.torch
        with budget.spending(self.name), torch.no_grad():
            devices = {parameter.grad.device for parameter in with_gradient}
            with_gradient = [p for p in with_gradient if p.grad.device == next(iter(devices))]
            largest = torch.stack([_largest(torch, parameter.grad) for parameter in with_gradient])
            interval.expect(with_gradient, len(chosen))
            self.probe.scalars.later(largest, lambda values: self._learn(interval, values))

    def _learn(self, interval, values):
        interval.arrived(values)
        self._judge(interval)

    def _judge(self, interval):
        if not interval.is_known():
            return
        self.probe.see(self.name)
        if self._graph is not None and not interval.clean:
            interval.leave_out(self._graph.is_unused)
        clean = self._clean.get(interval.owner, 0)
        if interval.clean:
            self._clean[interval.owner] = clean + 1
        if interval.clean or not interval.left_over or not self._pace.due():
            return
        named = [parameter for parameter in (ref() for ref in interval.left_over[:MAX_NAMES]) if parameter is not None]
        self.probe.emit(
            "stale-gradients",
            step=interval.step,
            tensors=len(interval.left_over),
            of=interval.looked_at,
            names=self._names.several(named),
            clean=clean,
        )


class Interval(object):
    """Between two steps of one optimizer: what the backwards in between began with."""

    def __init__(self, opened_at):
        self.opened_at = opened_at
        self.clean = False
        self.left_over = ()
        self.looked_at = 0
        self.step = None
        self.owner = None
        self._seen = []
        self._outstanding = 0

    def expect(self, parameters, looked_at):
        self._seen = [(weakref.ref(parameter), local(parameter.grad).data_ptr()) for parameter in parameters]
        self.looked_at = looked_at
        self._outstanding += 1

    def arrived(self, values):
        self._outstanding -= 1
        if len(values) != len(self._seen):
            return
        self.left_over = [seen[0] for seen, value in zip(self._seen, values) if value != 0]
        self.clean = self.clean or not self.left_over

    def leave_out(self, is_unused):
        alive = [(reference, reference()) for reference in self.left_over]
        self.left_over = [reference for reference, parameter in alive if parameter is None or not is_unused(parameter)]

    def close(self, step):
        """The optimizer is about to step. Gradients that are other tensors by now were assigned, not accumulated."""
        self.step = step
        for reference, address in self._seen:
            parameter = reference()
            if parameter is None or parameter.grad is None or local(parameter.grad).data_ptr() != address:
                self.clean = True
                return

    def is_known(self):
        return self.step is not None and self._outstanding == 0 and (self.clean or bool(self._seen))


def spread_out(optimizer, most, turn):
    """At most so many of the parameters, other ones in each turn."""
    groups = optimizer.param_groups
    total = sum(len(group["params"]) for group in groups)
    stride = max(1, total // most)
    chosen = []
    passed = 0
    for group in groups:
        parameters = group["params"]
        offset = (turn - passed) % stride
        chosen.extend(p for p in parameters[offset::stride] if p.requires_grad)
        passed += len(parameters)
    return chosen[:most]


def _largest(torch, gradient):
    """The largest magnitude, among the first elements of a large one: left-over gradients are rarely zero there."""
    values = gradient.detach()._values() if gradient.layout != torch.strided else local(gradient)
    if values.numel() > MAX_ELEMENTS and values.is_contiguous():
        values = values.view(-1)[:MAX_ELEMENTS]
    if values.numel() == 0:
        return torch.zeros((), device=values.device)
    return values.abs().amax().to(torch.float32)

"""Detects gradients left over from the previous step.

Gradients are read when a backward begins: by then, cleared gradients must be gone. Trainings clear gradients at different
places, and with several optimizers the gradients of one may rightly exist while another's loss is computed. So an
optimizer's gradients count as left over only if no backward between two of its steps began with cleared gradients.
Parameters that no loss uses do not count: their gradients are overwritten by copies (master weights), not accumulated.
"""

import weakref

from ..param_names import live
from . import Inspector
from .rate_limit import RateLimit
from .tensors import to_local

MAX_TENSORS_AT_FIRST = 64
MAX_TENSORS = 8
MAX_ELEMENTS = 1 << 16
READS_AT_FIRST = 5
MAX_NAMES = 8
REPORT_SECONDS = 60.0


class StaleGradientsInspector(Inspector):
    name = "gradient clearing"

    def __init__(self, probe, names, graph=None):
        super().__init__(probe)
        self._names = names
        self._graph = graph
        self._intervals = {}  # optimizer id -> the interval since its last step, while it is watched
        self._read_count = 0
        self._clean = {}  # optimizer id -> how many of its intervals were clean
        self._limit = RateLimit(3, REPORT_SECONDS)

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
                self._read_gradients(optimizer, interval)

    def step_begins(self, optimizer, is_primary):
        interval = self._intervals.pop(id(optimizer), None)
        if interval is not None:
            interval.close(self.probe.step + 1, id(optimizer))
            self._judge_interval(interval)

    def step_ended(self, optimizer, is_primary):
        if not is_primary:  # the interval of the primary optimizer begins with the first backward after its step
            self._intervals[id(optimizer)] = Interval(self.probe.step)

    def _read_gradients(self, optimizer, interval):
        budget = self.probe.budget
        at_first = self._read_count < READS_AT_FIRST
        chosen = spread_parameters(optimizer, MAX_TENSORS_AT_FIRST if at_first else MAX_TENSORS, self._read_count)
        with_gradient = [parameter for parameter in chosen if parameter.grad is not None]
        if not with_gradient:
            self._read_count += 1
            interval.clean = True
            self.probe.see(self.name)
            return
        if not at_first and not budget.allows(budget.expected(self.name)):
            self._intervals.pop(id(optimizer), None)
            return
        self._read_count += 1
        torch = self.probe.torch
        with budget.spending(self.name), torch.no_grad():
            device = with_gradient[0].grad.device
            with_gradient = [p for p in with_gradient if p.grad.device == device]
            largest = torch.stack([_max_magnitude(torch, parameter.grad) for parameter in with_gradient])
            interval.expect(with_gradient, len(chosen))
            self.probe.scalars.later(largest, lambda values: self._handle_values(interval, values))

    def _handle_values(self, interval, values):
        interval.receive(values)
        self._judge_interval(interval)

    def _judge_interval(self, interval):
        if not interval.is_known():
            return
        self.probe.see(self.name)
        if self._graph is not None and not interval.clean:
            interval.exclude(self._graph.is_unused)
        clean = self._clean.get(interval.owner, 0)
        if interval.clean:
            self._clean[interval.owner] = clean + 1
        if interval.clean or not interval.left_over or not self._limit.try_acquire():
            return
        self.probe.emit(
            "stale-gradients",
            step=interval.step,
            tensors=len(interval.left_over),
            of=interval.sampled,
            names=self._names.several(live(interval.left_over[:MAX_NAMES])),
            clean=clean,
        )


class Interval(object):
    """The interval between two steps of one optimizer, and the gradients at the start of the backwards in it."""

    def __init__(self, opened_at):
        self.opened_at = opened_at
        self.clean = False
        self.left_over = ()
        self.sampled = 0
        self.step = self.owner = None
        self._seen = []
        self._outstanding = 0

    def expect(self, parameters, sampled):
        self._seen = [(weakref.ref(parameter), to_local(parameter.grad).data_ptr()) for parameter in parameters]
        self.sampled = sampled
        self._outstanding += 1

    def receive(self, values):
        self._outstanding -= 1
        if len(values) != len(self._seen):
            return
        self.left_over = [seen[0] for seen, value in zip(self._seen, values) if value != 0]
        self.clean = self.clean or not self.left_over

    def exclude(self, is_unused):
        alive = [(reference, reference()) for reference in self.left_over]
        self.left_over = [reference for reference, parameter in alive if parameter is None or not is_unused(parameter)]

    def close(self, step, owner):
        """Close the interval before a step. Gradients that are now other tensors were assigned, not accumulated."""
        self.step, self.owner = step, owner
        for reference, address in self._seen:
            parameter = reference()
            if parameter is None or parameter.grad is None or to_local(parameter.grad).data_ptr() != address:
                self.clean = True
                return

    def is_known(self):
        return self.step is not None and self._outstanding == 0 and (self.clean or bool(self._seen))


def spread_parameters(optimizer, max_count, turn):
    """Return at most `max_count` of the parameters, different ones in each turn."""
    groups = optimizer.param_groups
    total = sum(len(group["params"]) for group in groups)
    stride = max(1, total // max_count)
    chosen = []
    skipped = 0
    for group in groups:
        parameters = group["params"]
        offset = (turn - skipped) % stride
        chosen.extend(p for p in parameters[offset::stride] if p.requires_grad)
        skipped += len(parameters)
    return chosen[:max_count]


def _max_magnitude(torch, gradient):
    """Return the largest magnitude of the first elements: left-over gradients are rarely zero there."""
    values = gradient.detach()._values() if gradient.layout != torch.strided else to_local(gradient)
    if values.numel() > MAX_ELEMENTS and values.is_contiguous():
        values = values.view(-1)[:MAX_ELEMENTS]
    if values.numel() == 0:
        return torch.zeros((), device=values.device)
    return values.abs().amax().to(torch.float32)

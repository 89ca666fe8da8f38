"""A probe for looks to look through: it calls them as the core does, and keeps what they say, checked against the events."""

import contextlib

import torch

from holdfast.probe.holdfast_probe.deferred_scalars import DeferredScalars
from holdfast.probe.holdfast_probe.event_writer import encode_event
from holdfast.schema import events


class FreeBudget:
    """Everything is allowed."""

    credit = 1.0

    def allows(self, seconds):
        return True

    def expected(self, name):
        return 0.0

    def add_cost(self, name, seconds):
        pass

    @contextlib.contextmanager
    def spending(self, name):
        yield


class StubRecord:
    def __init__(self):
        self.norms = []

    def expect_norm(self):
        return self.norms.extend


class StubSteps:
    def __init__(self):
        self.record = StubRecord()


class StubLoaders:
    evaluating = False


class StubProbe:
    def __init__(self):
        self.torch = torch
        self.step = self.first_step = 0
        self.rank, self.world_size = 0, 1
        self.optimizers = []
        self.budget = FreeBudget()
        self.scalars = DeferredScalars(torch, self.note)
        self.steps = StubSteps()
        self.loaders = StubLoaders()
        self.awake, self.silent, self.heart = True, False, None
        self.watching = True
        self.registered_models = []
        self.inspectors = []
        self.events = []
        self.seen, self.missing = {}, {}
        self.notes = []
        self.pauses = []

    @property
    def primary_optimizer(self):
        return self.optimizers[0] if self.optimizers else None

    def emit(self, event, **fields):
        self.events.append(events.decode(encode_event(event, fields)))

    def see(self, kind, remark=""):
        self.seen[kind] = remark
        self.missing.pop(kind, None)

    def miss(self, kind, why):
        self.missing[kind] = why
        self.seen.pop(kind, None)

    def note(self, what, detail="", code=""):
        self.notes.append((what, detail))

    def paused(self, seconds):
        self.pauses.append(seconds)

    def phase(self, name):
        return "training"

    def failed(self, where, error):
        raise AssertionError(where) from error

    def of(self, kind):
        return [event for event in self.events if type(event) is kind]

    # --- what the core does ----------------------------------------------------------------------------------------

    def backward(self, loss, *, first=True):
        for inspector in self.inspectors:
            inspector.backward_begins(loss, first)
        loss.backward()

    def take_step(self, optimizer):
        clock = not self.optimizers or self.optimizers[0] is optimizer
        for inspector in self.inspectors:
            inspector.step_begins(optimizer, clock)
        optimizer.step()
        if not any(known is optimizer for known in self.optimizers):
            self.optimizers.append(optimizer)
        self.step += clock
        for inspector in self.inspectors:
            inspector.step_ended(optimizer, clock)

    def ends(self):
        for inspector in self.inspectors:
            inspector.ends()


def with_look(make):
    """A stub probe with one look, made by `make(probe)`."""
    probe = StubProbe()
    probe.inspectors.append(make(probe))
    return probe


def train(probe, model, optimizer, steps, *, batch=None, clear=None):
    """A plain loop on fixed numbers. `clear` is what is done about gradients; by default they are cleared."""
    generator = torch.Generator().manual_seed(0)
    for _ in range(steps):
        inputs = torch.randn(4, 4, generator=generator) if batch is None else batch
        (clear or optimizer.zero_grad)()
        probe.backward(model(inputs).square().mean())
        probe.take_step(optimizer)


def small_model(seed=0):
    torch.manual_seed(seed)
    return torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Tanh(), torch.nn.Linear(8, 3))

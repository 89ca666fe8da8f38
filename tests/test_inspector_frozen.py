import pytest
import torch
from inspector_stub import StubProbe, small_model, train, with_look

from holdfast.probe.holdfast_probe.inspectors.frozen import FrozenInspector
from holdfast.probe.holdfast_probe.param_names import ParamNames
from holdfast.schema.events import Frozen


def frozen_probe():
    return with_look(lambda probe: FrozenInspector(probe, ParamNames(probe)))


class Backbone(torch.nn.Module):
    """A body that is frozen, with a normalisation layer, and a head."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.body = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.BatchNorm1d(8))
        self.head = torch.nn.Linear(8, 3)
        self.body.requires_grad_(requires_grad=False)

    def forward(self, inputs):
        return self.head(self.body(inputs))


@pytest.mark.parametrize("held", [True, False])
def test_statistics_of_a_frozen_layer_in_training_mode_are_found(held):
    """Whether or not the optimizer was given the frozen parameters too."""
    probe, model = frozen_probe(), Backbone()
    parameters = model.parameters() if held else model.head.parameters()
    train(probe, model, torch.optim.SGD(parameters, lr=0.1), 30)
    (event,) = probe.of(Frozen)
    assert (event.statistics_moved, event.moved, event.moved_by_optimizer) == (["body.1"], [], [])
    assert (event.tensors, event.statistics) == (4, 1)
    assert event.step < 20, "soon"


def test_a_frozen_layer_in_evaluation_mode_stays():
    probe, model = frozen_probe(), Backbone()
    model.body.eval()
    train(probe, model, torch.optim.SGD(model.parameters(), lr=0.1), 100)
    assert [(event.statistics_moved, event.moved) for event in probe.of(Frozen)] == [([], []), ([], [])]


def test_nothing_is_told_where_nothing_is_frozen():
    probe, model = frozen_probe(), small_model()
    train(probe, model, torch.optim.SGD(model.parameters(), lr=0.1), 30)
    assert probe.of(Frozen) == []


def test_a_momentum_encoder_moves_with_its_statistics():
    """Frozen parameters that follow others, and their statistics with them, are told as moved, not as drifting."""
    probe, model = frozen_probe(), Backbone()
    optimizer = torch.optim.SGD(model.head.parameters(), lr=0.1)
    for _ in range(30):
        train(probe, model, optimizer, 1)
        with torch.no_grad():
            for parameter in model.body.parameters():
                parameter.mul_(0.999)
    (event,) = probe.of(Frozen)
    assert event.statistics_moved == []
    assert "body.0.weight" in event.moved


def test_momentum_that_moves_what_was_frozen_late_is_found():
    """Frozen after some steps, with gradients of zeros left in place: the optimizer goes on moving it."""
    probe, model = frozen_probe(), small_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    train(probe, model, optimizer, 2)
    model[0].requires_grad_(requires_grad=False)
    train(probe, model, optimizer, 30, clear=lambda: optimizer.zero_grad(set_to_none=False))
    assert probe.of(Frozen)[0].moved_by_optimizer == ["0.weight", "0.bias"]


def test_networks_that_freeze_each_other_in_turn_are_understood():
    """While the generator steps, the discriminator is frozen; it is trained all the same, statistics and all."""
    probe = frozen_probe()
    generator, discriminator = small_model(1), torch.nn.Sequential(torch.nn.Linear(3, 8), torch.nn.BatchNorm1d(8))
    whole = torch.nn.ModuleList([generator, discriminator])
    first = torch.optim.SGD(generator.parameters(), lr=0.01)
    second = torch.optim.SGD(discriminator.parameters(), lr=0.01)
    for _ in range(30):
        discriminator.requires_grad_(requires_grad=True)
        second.zero_grad()
        probe.backward(discriminator(generator(torch.randn(4, 4)).detach()).square().mean())
        if probe.optimizers:
            probe.take_step(second)
        discriminator.requires_grad_(requires_grad=False)
        first.zero_grad()
        probe.backward(-discriminator(generator(torch.randn(4, 4))).square().mean())
        probe.take_step(first)
    assert whole is not None
    assert all(not (event.moved or event.moved_by_optimizer or event.statistics_moved) for event in probe.of(Frozen))


def test_looks_change_no_number():
    """With the look and without it, the same weights come out."""
    seen, bare = Backbone(), Backbone()
    train(frozen_probe(), seen, torch.optim.Adam(seen.parameters()), 30)
    train(StubProbe(), bare, torch.optim.Adam(bare.parameters()), 30)
    assert all(torch.equal(one, other) for one, other in zip(seen.parameters(), bare.parameters(), strict=True))

import pytest
import torch
from inspector_stub import StubProbe, small_model, train, with_look

from holdfast.probe.holdfast_probe.inspectors.graph import GraphInspector
from holdfast.probe.holdfast_probe.inspectors.stale_gradients import StaleGradientsInspector
from holdfast.probe.holdfast_probe.param_names import ParamNames
from holdfast.schema.events import StaleGradients


def uncleared_probe():
    return with_look(lambda probe: StaleGradientsInspector(probe, ParamNames(probe)))


def test_a_missing_zero_grad_is_told_from_the_second_step_on():
    """Gradients of the step before are still there when the next backward begins."""
    probe, model = uncleared_probe(), small_model()
    train(probe, model, torch.optim.SGD(model.parameters(), lr=0.01), 20, clear=lambda: None)
    told = probe.of(StaleGradients)
    assert (told[0].step, told[0].tensors, told[0].of) == (2, 4, 4)
    assert told[0].names == ["0.weight", "0.bias", "2.weight", "2.bias"]
    assert [event.clean for event in told] == [0, 0, 0], "the first times, then seldom; it was never clean"


def test_how_often_it_was_clean_is_told():
    """Cleared in every other step: who reads it can tell a habit from a slip."""
    probe, model = uncleared_probe(), small_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    turn = iter(range(100))
    train(probe, model, optimizer, 7, clear=lambda: optimizer.zero_grad() if next(turn) % 2 == 0 else None)
    assert [(event.step, event.clean) for event in probe.of(StaleGradients)] == [(2, 0), (4, 1), (6, 2)]


@pytest.mark.parametrize("set_to_none", [True, False])
def test_clearing_by_none_or_by_zeros_is_both_clearing(set_to_none):
    """Gradients filled with zeros are there, and not left over."""
    probe, model = uncleared_probe(), small_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    train(probe, model, optimizer, 12, clear=lambda: optimizer.zero_grad(set_to_none=set_to_none))
    assert probe.of(StaleGradients) == []
    assert probe.seen["gradient clearing"] == ""


def test_accumulation_is_not_left_over():
    """Several backwards a step: only the first of them has to begin clean."""
    probe, model = uncleared_probe(), small_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for _ in range(6):
        optimizer.zero_grad()
        for micro in range(3):
            probe.backward(model(torch.randn(4, 4)).square().mean(), first=micro == 0)
        probe.take_step(optimizer)
    assert probe.of(StaleGradients) == []


def test_two_optimizers_that_clear_before_their_own_backward():
    """In a GAN the discriminator's gradients rightly lie around while the generator's loss is computed."""
    probe = uncleared_probe()
    generator, discriminator = small_model(1), torch.nn.Linear(3, 1)
    first = torch.optim.SGD(discriminator.parameters(), lr=0.01)
    second = torch.optim.SGD(generator.parameters(), lr=0.01)
    for _ in range(6):
        first.zero_grad()
        probe.backward(discriminator(generator(torch.randn(4, 4)).detach()).mean())
        probe.take_step(first)
        second.zero_grad()
        probe.backward(-discriminator(generator(torch.randn(4, 4))).mean())
        probe.take_step(second)
    assert probe.of(StaleGradients) == []


def test_one_of_two_optimizers_that_never_clears():
    """The generator's gradients grow for ever, and it is named; the discriminator's do not."""
    probe = uncleared_probe()
    generator, discriminator = small_model(1), torch.nn.Linear(3, 1)
    first = torch.optim.SGD(discriminator.parameters(), lr=0.01)
    second = torch.optim.SGD(generator.parameters(), lr=0.01)
    for _ in range(4):
        first.zero_grad()
        probe.backward(discriminator(generator(torch.randn(4, 4)).detach()).mean())
        probe.take_step(first)
        probe.backward(-discriminator(generator(torch.randn(4, 4))).mean())
        probe.take_step(second)
    assert {event.tensors for event in probe.of(StaleGradients)} == {4}


def test_gradients_that_are_assigned_are_not_left_over():
    """Who computes gradients by hand and assigns them need not clear them."""
    probe, model = uncleared_probe(), small_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for _ in range(4):
        loss = model(torch.randn(4, 4)).square().mean()
        for inspector in probe.inspectors:
            inspector.backward_begins(loss, True)
        gradients = torch.autograd.grad(loss, list(model.parameters()))
        for parameter, gradient in zip(model.parameters(), gradients, strict=True):
            parameter.grad = gradient
        probe.take_step(optimizer)
    assert probe.of(StaleGradients) == []


def test_gradients_that_are_copied_over_are_not_left_over():
    """Master weights in float32: the losses use the 16-bit ones, and each gradient is written over the one before."""
    probe, model = StubProbe(), small_model().to(torch.bfloat16)
    graph = GraphInspector(probe, ParamNames(probe))
    probe.inspectors = [graph, StaleGradientsInspector(probe, ParamNames(probe), graph)]
    masters = [parameter.detach().clone().float().requires_grad_() for parameter in model.parameters()]
    optimizer = torch.optim.SGD(masters, lr=0.01)
    for _ in range(6):
        model.zero_grad()
        probe.backward(model(torch.randn(4, 4).to(torch.bfloat16)).float().square().mean())
        for master, parameter in zip(masters, model.parameters(), strict=True):
            master.grad = torch.empty_like(master) if master.grad is None else master.grad
            master.grad.copy_(parameter.grad)
        probe.take_step(optimizer)
    assert probe.of(StaleGradients) == []

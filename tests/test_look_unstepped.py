import torch
from look_stub import small_model, with_look

from holdfast.child.holdfast_child.looks.unstepped import UnsteppedLook
from holdfast.child.holdfast_child.names import Names
from holdfast.words.events import Movement


def unstepped_probe():
    return with_look(lambda probe: UnsteppedLook(probe, Names(probe)))


def backwards(probe, model, count):
    for _ in range(count):
        probe.backward(model(torch.randn(4, 4)).square().mean())


def test_an_optimizer_that_is_never_reached_is_told_at_the_end():
    """Backward after backward, and the weights stay what they were."""
    probe, model = unstepped_probe(), small_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    backwards(probe, model, 200)
    assert probe.of(Movement) == [], "an accumulation may be long"
    probe.ends()
    (event,) = probe.of(Movement)
    assert (event.without_step, event.moved, event.checked) == (200, 0, 4)
    assert {tensor.name.partition(".")[2] for tensor in event.stuck} == {"0.weight", "0.bias", "2.weight", "2.bias"}
    assert optimizer is not None


def test_gradients_without_an_optimizer_are_all_that_is_wanted():
    """Saliency, attacks, Fisher information: nobody meant to update anything."""
    probe, model = unstepped_probe(), small_model()
    backwards(probe, model, 200)
    probe.ends()
    assert probe.of(Movement) == []


def test_weights_that_are_updated_by_hand_are_seen_to_move():
    probe, model = unstepped_probe(), small_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(4):
        backwards(probe, model, 50)
        for parameter in model.parameters():
            parameter.data -= 0.1 * parameter.grad
    probe.ends()
    assert (probe.of(Movement), optimizer is not None) == ([], True)


def test_a_step_after_a_long_accumulation_ends_it():
    probe, model = unstepped_probe(), small_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    backwards(probe, model, 200)
    probe.take_step(optimizer)
    backwards(probe, model, 200)
    probe.ends()
    assert probe.of(Movement) == []

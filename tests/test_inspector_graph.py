import pytest
import torch
from inspector_stub import small_model, train, with_look
from torch.utils.checkpoint import checkpoint

from holdfast.probe.holdfast_probe.inspectors.graph import GraphInspector, find_leaves
from holdfast.probe.holdfast_probe.param_names import ParamNames
from holdfast.schema.events import Graph


def graph_probe():
    return with_look(lambda probe: GraphInspector(probe, ParamNames(probe)))


def test_a_healthy_model_uses_what_its_optimizer_holds():
    """One event, with nothing on either side of the difference."""
    probe, model = graph_probe(), small_model()
    train(probe, model, torch.optim.SGD(model.parameters(), lr=0.1), 5)
    (event,) = probe.of(Graph)
    assert (event.used, event.held, event.used_not_held, event.held_not_used) == (4, 4, [], [])
    assert probe.seen["graph"] == ""


def test_parameters_outside_the_optimizer_are_named():
    """A head that the loss uses and no optimizer holds."""
    probe, model = graph_probe(), small_model()
    train(probe, model, torch.optim.SGD(model[0].parameters(), lr=0.1), 5)
    (event,) = probe.of(Graph)
    assert (event.used, event.held) == (4, 2)
    assert sorted(event.used_not_held) == ["2.bias", "2.weight"]


def test_an_optimizer_with_stale_parameters():
    """Built before the model was replaced: no backward reaches what it holds."""
    probe, stale, model = graph_probe(), small_model(), small_model(1)
    train(probe, model, torch.optim.SGD(stale.parameters(), lr=0.1), 5)
    (event,) = probe.of(Graph)
    assert len(event.held_not_used) == len(event.used_not_held) == 4


def test_some_unused_parameters_are_told_after_more_steps():
    """A layer may be skipped at random, so a part that is never used waits for ten steps."""
    probe, model = graph_probe(), small_model()
    spare = torch.nn.Linear(2, 2)
    optimizer = torch.optim.SGD([*model.parameters(), *spare.parameters()], lr=0.1)
    train(probe, model, optimizer, 9)
    assert probe.of(Graph) == []
    train(probe, model, optimizer, 2)
    (event,) = probe.of(Graph)
    assert len(event.held_not_used) == 2


def test_layers_dropped_at_random_are_used():
    """What is used in some steps only is used."""
    probe, model = graph_probe(), small_model()
    side = torch.nn.Linear(4, 3)
    optimizer = torch.optim.SGD([*model.parameters(), *side.parameters()], lr=0.1)
    for step in range(8):
        optimizer.zero_grad()
        inputs = torch.randn(4, 4)
        output = model(inputs) + side(inputs) if step % 4 == 3 else model(inputs)
        probe.backward(output.square().mean())
        probe.take_step(optimizer)
    (event,) = probe.of(Graph)
    assert (event.used, event.held_not_used) == (6, [])


def test_two_optimizers_are_judged_together():
    """A generator's loss goes through the discriminator, which another optimizer holds: nothing is amiss."""
    probe = graph_probe()
    generator, discriminator = small_model(1), torch.nn.Linear(3, 1)
    first = torch.optim.SGD(discriminator.parameters(), lr=0.01)
    second = torch.optim.SGD(generator.parameters(), lr=0.01)
    for step in range(30):
        first.zero_grad()
        probe.backward(discriminator(generator(torch.randn(4, 4)).detach()).mean())
        probe.take_step(first)
        if step > 1:
            second.zero_grad()
            probe.backward(-discriminator(generator(torch.randn(4, 4))).mean())
            probe.take_step(second)
    event = probe.of(Graph)[-1]
    assert (event.used, event.held, event.used_not_held, event.held_not_used) == (6, 6, [], [])


def test_an_optimizer_that_has_not_stepped_yet_holds_its_parameters():
    """A discriminator that starts later is not outside of every optimizer."""
    probe, model = graph_probe(), small_model()
    waiting = torch.optim.SGD(model[2].parameters(), lr=0.1)
    train(probe, model, torch.optim.SGD(model[0].parameters(), lr=0.1), 5)
    (event,) = probe.of(Graph)
    assert (event.used_not_held, event.held_not_used) == ([], [])
    assert waiting is not None


def test_reentrant_checkpointing_makes_no_claim():
    """The parameters behind such a checkpoint are not in the graph: it says so and tells nothing."""
    probe, model = graph_probe(), small_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(12):
        optimizer.zero_grad()
        inputs = torch.randn(4, 4, requires_grad=True)
        probe.backward(model[2](checkpoint(model[:2], inputs, use_reentrant=True)).square().mean())
        probe.take_step(optimizer)
    assert probe.of(Graph) == []
    assert probe.missing["graph"].startswith("reentrant checkpointing")


def test_gradients_from_elsewhere_make_no_claim():
    """Master weights get their gradients by assignment; the graph never ends in them."""
    probe, model, master = graph_probe(), small_model(), small_model()
    optimizer = torch.optim.SGD(master.parameters(), lr=0.1)
    for _ in range(12):
        model.zero_grad()
        probe.backward(model(torch.randn(4, 4)).square().mean())
        for parameter, copy in zip(model.parameters(), master.parameters(), strict=True):
            copy.grad = parameter.grad.clone()
        probe.take_step(optimizer)
    assert probe.of(Graph) == []
    assert "gradients from the graph" in probe.missing


@pytest.mark.parametrize("wrap", ["compiled", "not reentrant", "plain"])
def test_what_a_wrapped_model_shows(wrap):
    """Under torch.compile and under checkpointing that is not reentrant, all parameters are leaves of the graph."""
    model = small_model()
    if wrap == "compiled":
        forward = torch.compile(model, backend="aot_eager")
    elif wrap == "not reentrant":
        forward = lambda inputs: checkpoint(model, inputs, use_reentrant=False)  # noqa: E731
    else:
        forward = model
    leaves, why = find_leaves(forward(torch.randn(4, 4)).square().mean())
    assert why is None
    assert {id(leaf) for leaf in leaves} == {id(parameter) for parameter in model.parameters()}

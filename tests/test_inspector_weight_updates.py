import pytest
import torch
from inspector_stub import small_model, train, with_look

from holdfast.probe.holdfast_probe.inspectors import weight_updates
from holdfast.probe.holdfast_probe.inspectors.expected_update import expected_ulps, ulp
from holdfast.probe.holdfast_probe.inspectors.fair_share import FairShare
from holdfast.probe.holdfast_probe.inspectors.weight_updates import MAX_BYTES, WeightUpdatesInspector
from holdfast.probe.holdfast_probe.param_names import ParamNames
from holdfast.schema.events import WeightUpdates


def movement_probe():
    return with_look(
        lambda probe: WeightUpdatesInspector(
            probe, ParamNames(probe), FairShare(probe, ("gradients", "weight-updates"))
        )
    )


def told(probe):
    probe.ends()
    return probe.of(WeightUpdates)


class LeavesOneOut(torch.optim.SGD):
    """Steps, but restores the rows that `self.left_out` names: a write into a temporary, seen from outside."""

    left_out = ()

    def step(self, closure=None):
        kept = [(tensor, rows, tensor[rows].detach().clone()) for tensor, rows in self.left_out]
        super().step(closure)
        with torch.no_grad():
            for tensor, rows, before in kept:
                tensor[rows] = before


def test_a_healthy_model_moves_and_nothing_is_called_stuck():
    """Every tensor is looked at in the first steps, moved, and so did the optimizer's state."""
    probe, model = movement_probe(), small_model()
    train(probe, model, torch.optim.Adam(model.parameters(), lr=1e-2), 3)
    first = told(probe)[0]
    assert (first.step, first.checked, first.of, first.moved, first.state_moved) == (1, 4, 4, 4, 4)
    assert first.stuck == first.zero_gradient == first.no_gradient == []
    assert probe.seen["weight-updates"] == ""


def test_a_tensor_that_its_optimizer_never_writes_is_stuck():
    """All rows of the tensor had a gradient, none moved, and the expected update could well have shown."""
    probe, model = movement_probe(), small_model()
    optimizer = LeavesOneOut(model.parameters(), lr=0.1)
    optimizer.left_out = [(model[0].weight, slice(None))]
    train(probe, model, optimizer, 4)
    stuck = [tensor for event in told(probe) for tensor in event.stuck]
    assert {tensor.name for tensor in stuck} == {"0.weight"}
    assert (stuck[0].rows, stuck[0].with_gradient, stuck[0].stuck) == (8, 8, 8)
    assert stuck[0].update_ulps > 1000


def test_one_row_that_stays_is_found():
    """A tensor can move and still hold a row that never does."""
    probe, model = movement_probe(), small_model()
    optimizer = LeavesOneOut(model.parameters(), lr=0.1)
    optimizer.left_out = [(model[2].weight, slice(1, 2))]
    train(probe, model, optimizer, 4)
    stuck = [tensor for event in told(probe) for tensor in event.stuck]
    assert {(tensor.name, tensor.stuck, tensor.rows) for tensor in stuck} == {("2.weight", 1, 3)}


@pytest.mark.parametrize("kind", [torch.optim.SGD, torch.optim.Adam, torch.optim.AdamW])
def test_updates_that_cannot_show_are_marked_as_such(kind):
    """bfloat16 weights and a tiny learning rate: healthy, nothing moves, and the update is below half a unit."""
    probe, model = movement_probe(), small_model().to(torch.bfloat16)
    options = {} if kind is torch.optim.SGD else {"weight_decay": 1e-4}
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.fill_(1.0)
    train(probe, model, kind(model.parameters(), lr=1e-5, **options), 4, batch=torch.ones(4, 4, dtype=torch.bfloat16))
    stuck = [tensor for event in told(probe) for tensor in event.stuck]
    assert stuck
    assert all(tensor.update_ulps < 0.5 for tensor in stuck)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(
    ("kind", "options"),
    [
        (torch.optim.SGD, {"lr": 0.05, "momentum": 0.9}),
        (torch.optim.SGD, {"lr": 0.01, "momentum": 0.9, "nesterov": True, "weight_decay": 1e-4}),
        (torch.optim.Adam, {"lr": 1e-3, "weight_decay": 1e-2}),
        (torch.optim.AdamW, {"lr": 1e-3}),
        (torch.optim.AdamW, {"lr": 1e-4, "fused": True}),
        (torch.optim.RMSprop, {"lr": 1e-5}),
    ],
)
def test_a_training_that_converges_has_an_excuse_for_every_weight_that_stays(monkeypatch, kind, options, dtype):
    """Towards the end updates vanish and weights stay: each of them below half a unit, with every standard optimizer."""
    monkeypatch.setattr(weight_updates, "STUCK_SECONDS", 0.0)
    probe = movement_probe()
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.LayerNorm(8), torch.nn.ReLU(), torch.nn.Linear(8, 2))
    model = model.to(dtype)
    train(probe, model, kind(model.parameters(), **options), 250, batch=torch.randn(4, 4).to(dtype))
    stuck = [tensor for event in told(probe) for tensor in event.stuck]
    assert [tensor for tensor in stuck if not tensor.update_ulps < 0.5] == []


class Own(torch.optim.Optimizer):
    """Follows the sign of the gradient, but for the rows that `self.left_out` names."""

    left_out = ()

    def __init__(self, parameters, lr):
        super().__init__(parameters, {"lr": lr})

    @torch.no_grad()
    def step(self, closure=None):
        kept = [(tensor, rows, tensor[rows].clone()) for tensor, rows in self.left_out]
        for group in self.param_groups:
            for parameter in group["params"]:
                parameter.sub_(parameter.grad.sign(), alpha=group["lr"])
        for tensor, rows, before in kept:
            tensor[rows] = before


def test_an_unknown_optimizer_that_moves_nothing_gets_no_estimate():
    """What stays is still told; how far it should have moved is not claimed."""
    probe, model = movement_probe(), small_model()
    optimizer = Own(model.parameters(), 0.0001)
    optimizer.left_out = [(parameter, slice(None)) for parameter in model.parameters()]
    train(probe, model, optimizer, 3)
    stuck = [tensor for event in told(probe) for tensor in event.stuck]
    assert len({tensor.name for tensor in stuck}) == 4
    assert all(tensor.update_ulps is None and tensor.state_moved is None for tensor in stuck)


@pytest.mark.parametrize("rows", [slice(None), slice(1, 2)])
def test_an_unknown_optimizer_is_judged_by_how_far_it_moves_others(rows):
    """A tensor, or a row of it, that stays where all others move."""
    probe, model = movement_probe(), small_model()
    optimizer = Own(model.parameters(), 0.01)
    optimizer.left_out = [(model[2].weight, rows)]
    train(probe, model, optimizer, 5)
    stuck = [tensor for event in told(probe) for tensor in event.stuck]
    assert {tensor.name for tensor in stuck} == {"2.weight"}
    assert max(tensor.times for tensor in stuck) >= 2
    assert all(tensor.by_others and tensor.update_ulps > 1 for tensor in stuck)


def test_an_unknown_optimizer_has_an_excuse_where_its_steps_cannot_show():
    """In bfloat16 a weight of one does not feel a small step, and weights near zero do."""
    probe = movement_probe()
    model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.LayerNorm(8), torch.nn.Linear(8, 2)).to(torch.bfloat16)
    train(probe, model, Own(model.parameters(), 1e-5), 6, batch=torch.randn(4, 4).to(torch.bfloat16))
    stuck = {tensor.name: tensor.update_ulps for event in told(probe) for tensor in event.stuck}
    assert "1.weight" in stuck
    assert all(ulps < 1 for ulps in stuck.values())


def test_a_learning_rate_of_zero_is_no_fault():
    """Warm-up starts at zero: such groups are left out until their rate is another."""
    probe, model = movement_probe(), small_model()
    optimizer = torch.optim.SGD(
        [{"params": model[0].parameters(), "lr": 0.0}, {"params": model[2].parameters()}], lr=0.1
    )
    train(probe, model, optimizer, 3)
    last = told(probe)[-1]
    assert (last.checked, last.of, last.moved, last.stuck) == (2, 4, 2, [])


def test_tensors_without_and_with_zero_gradients_are_named():
    """No gradient at all, and a gradient of zeros, are two different things, and neither is stuck."""
    probe, model = movement_probe(), small_model()
    spare = torch.nn.Linear(2, 2)
    model.add_module("spare", torch.nn.Identity())
    model.spare.weight = spare.weight
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(2):
        optimizer.zero_grad()
        probe.backward(model[0](torch.randn(4, 4)).square().mean() + 0 * model[2].weight.sum())
        probe.take_step(optimizer)
    first = told(probe)[0]
    assert sorted(first.no_gradient) == ["2.bias", "spare.weight"]
    assert first.zero_gradient == ["2.weight"]
    assert first.stuck == []


def test_frozen_parameters_are_not_counted():
    """What does not require a gradient is not promised to move."""
    probe, model = movement_probe(), small_model()
    model[0].requires_grad_(False)
    train(probe, model, torch.optim.SGD(model.parameters(), lr=0.1), 2)
    assert told(probe)[0].of == 2


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64, torch.complex64])
def test_every_floating_type_is_compared(dtype):
    """Half, double and complex weights move and are seen to; a stuck row among them is found."""
    probe = movement_probe()
    weight = torch.nn.Parameter(torch.ones(3, 5, dtype=dtype))
    still = torch.nn.Parameter(torch.ones(3, 5, dtype=dtype))
    optimizer = LeavesOneOut([weight, still], lr=0.1)
    optimizer.left_out = [(still, slice(0, 2))]
    for _ in range(3):
        optimizer.zero_grad()
        probe.backward((weight.abs().square() + still.abs().square()).sum())
        probe.take_step(optimizer)
    events = told(probe)
    assert events[0].moved + events[0].state_moved >= 1
    assert {(t.name, t.stuck) for event in events for t in event.stuck} == {("group 0, tensor 1 [3, 5]", 2)}


def test_a_layout_that_is_not_contiguous_is_compared():
    """channels_last weights, the ones that in-place kernels have missed, are compared like any other."""
    probe = movement_probe()
    model = torch.nn.Conv2d(4, 6, 3).to(memory_format=torch.channels_last)
    optimizer = LeavesOneOut(model.parameters(), lr=0.1)
    optimizer.left_out = [(model.weight, slice(2, 3))]
    train(probe, model, optimizer, 3, batch=torch.randn(2, 4, 5, 5))
    stuck = [tensor for event in told(probe) for tensor in event.stuck]
    assert not model.weight.is_contiguous()
    assert {(tensor.name, tensor.rows, tensor.stuck) for tensor in stuck} == {("weight", 6, 1)}


def test_sparse_gradients_only_ask_for_the_rows_they_have():
    """An embedding's untouched rows have no gradient, so they are not stuck."""
    probe = movement_probe()
    table = torch.nn.Embedding(10, 3, sparse=True)
    optimizer = torch.optim.SGD(table.parameters(), lr=0.1)
    for _ in range(2):
        optimizer.zero_grad()
        probe.backward(table(torch.tensor([1, 4, 4])).square().sum())
        probe.take_step(optimizer)
    first = told(probe)[0]
    assert (first.checked, first.moved, first.stuck, first.zero_gradient) == (1, 1, [], [])


def test_a_large_tensor_is_looked_at_in_parts():
    """No more is copied than the look may hold, and after some steps all rows had their turn."""
    probe = movement_probe()
    table = torch.nn.Parameter(torch.ones(64, 1 << 15))
    optimizer = LeavesOneOut([table], lr=0.1)
    optimizer.left_out = [(table, slice(50, 51))]
    held = []
    inspector = probe.inspectors[0]
    for _ in range(8):
        optimizer.zero_grad()
        probe.backward(table.square().sum())
        inspector.step_begins(optimizer, True)
        held.append(sum(item.bytes() for chosen in inspector._pending.values() for item in chosen.comparisons))
        optimizer.step()
        probe.optimizers = [optimizer]
        probe.step += 1
        inspector.step_ended(optimizer, True)
    assert max(held) <= MAX_BYTES
    stuck = [tensor for event in told(probe) for tensor in event.stuck]
    assert {(tensor.rows, tensor.stuck) for tensor in stuck} == {(16, 1)}


def steps_with_a_closure(probe, optimizer, model, *, steps, backwards=1):
    """Each step computes its own gradient; what lies there before it is of other numbers, or nothing."""
    inspector = probe.inspectors[0]
    for _ in range(steps):
        optimizer.zero_grad()
        inspector.step_begins(optimizer, True)
        for _ in range(backwards):
            probe.backward(model(torch.randn(4, 4)).square().mean())
        optimizer.step()
        if optimizer not in probe.optimizers:
            probe.optimizers.append(optimizer)
        probe.step += 1
        inspector.step_ended(optimizer, True)


def test_a_closure_is_judged_by_the_gradient_that_it_computed():
    """Before the step there is no gradient: nothing is called without one, and what stays is found all the same."""
    probe, model = movement_probe(), small_model()
    optimizer = LeavesOneOut(model.parameters(), lr=0.1)
    optimizer.left_out = [(model[0].weight, slice(None))]
    steps_with_a_closure(probe, optimizer, model, steps=5)
    events = told(probe)
    assert all(event.no_gradient == [] for event in events)
    assert {tensor.name for event in events for tensor in event.stuck} == {"0.weight"}


def test_a_healthy_closure_moves():
    probe, model = movement_probe(), small_model()
    steps_with_a_closure(probe, torch.optim.SGD(model.parameters(), lr=0.1), model, steps=5)
    assert [(event.moved, event.stuck, event.no_gradient) for event in told(probe)] == [(4, [], [])] * 2


def test_several_backwards_inside_a_step_make_no_claim():
    """No single gradient made the step, as in a line search."""
    probe, model = movement_probe(), small_model()
    optimizer = LeavesOneOut(model.parameters(), lr=0.1)
    optimizer.left_out = [(model[0].weight, slice(None))]
    steps_with_a_closure(probe, optimizer, model, steps=5, backwards=2)
    assert told(probe) == []


def test_what_had_to_move_is_looked_at_until_it_is_sure():
    """In the third step in a row the same row has stayed twice although it had to move; when it moves again, that is told."""
    probe, model = movement_probe(), small_model()
    optimizer = LeavesOneOut(model.parameters(), lr=0.1)
    optimizer.left_out = [(model[2].weight, slice(1, 2))]
    train(probe, model, optimizer, 3)
    assert [(event.step, event.stuck[0].times) for event in probe.of(WeightUpdates) if event.stuck] == [(2, 1), (3, 2)]
    optimizer.left_out = []
    train(probe, model, optimizer, 5)
    assert [name for event in told(probe) for name in event.moving_again] == ["2.weight"]


def test_updates_below_the_smallest_normal_number_need_not_show():
    """Devices flush them to zero: a weight of zero may stay although any number is many of its units."""
    weight = torch.zeros(3)
    group = {"lr": 1.0, "weight_decay": 0}
    tiny, normal = torch.full((3,), 1e-40), torch.full((3,), 1e-30)
    assert expected_ulps(torch, ("SGD", group), weight, tiny, {}).max() == 0
    assert expected_ulps(torch, ("SGD", group), weight, normal, {}).min() > 1


def test_lbfgs_is_said_not_to_be_seen():
    """An LBFGS step uses many gradients: the relation does not hold there."""
    probe, model = movement_probe(), small_model()
    optimizer = torch.optim.LBFGS(model.parameters())
    probe.inspectors[0].step_begins(optimizer, True)
    assert probe.missing["weight-updates"].startswith("an LBFGS")


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.float16])
def test_units_in_the_last_place(dtype):
    """The distance to the next number that the type can hold."""
    values = torch.tensor([1.0, 3.0, 0.1, -2.5], dtype=dtype)
    steps = (
        torch.nextafter(values.abs(), torch.full_like(values, 1e4)) - values.abs() if dtype != torch.float16 else None
    )
    expected = steps.to(ulp(torch, values).dtype) if steps is not None else torch.tensor([2**-10, 2**-9, 2**-14, 2**-9])
    assert torch.equal(ulp(torch, values), expected)


def test_a_layer_that_is_given_nothing_but_zeros_is_told_again():
    """Its weight has a gradient of zero and its bias has not; a head without any gradient is something else."""
    probe, model = movement_probe(), small_model()
    train(probe, model, torch.optim.SGD(model.parameters(), lr=0.1), 50, batch=torch.zeros(4, 4))
    events = told(probe)
    assert [event.zero_input for event in events] == [["0.weight"]] * len(events)
    assert [event.step for event in events[:3]] == [1, 21, 41]


def test_a_branch_of_weight_zero_is_no_layer_with_zero_input():
    probe, model = movement_probe(), torch.nn.ModuleList([small_model(), torch.nn.Linear(4, 3)])
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(3):
        optimizer.zero_grad()
        inputs = torch.randn(4, 4)
        probe.backward(model[0](inputs).square().mean() + 0.0 * model[1](inputs).mean())
        probe.take_step(optimizer)
    first = told(probe)[0]
    assert (first.zero_gradient, first.zero_input) == (["1.weight", "1.bias"], [])

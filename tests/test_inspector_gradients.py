import math

import torch
from inspector_stub import small_model, train, with_look

from holdfast.probe.holdfast_probe.inspectors.fair_share import FairShare
from holdfast.probe.holdfast_probe.inspectors.gradients import GradientsInspector
from holdfast.probe.holdfast_probe.param_names import ParamNames
from holdfast.schema.events import Gradients, as_number


def gradients_probe():
    return with_look(
        lambda probe: GradientsInspector(probe, ParamNames(probe), FairShare(probe, ("gradients", "weight-updates")))
    )


def test_the_norm_is_the_one_that_torch_computes():
    """The norm over all tensors, given to the step and told once while nothing is odd."""
    probe, model = gradients_probe(), small_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    train(probe, model, optimizer, 1)
    expected = torch.nn.utils.clip_grad_norm_(model.parameters(), math.inf).item()
    train(probe, model, optimizer, 5)
    (event,) = probe.of(Gradients)
    assert math.isclose(event.norm, expected, rel_tol=1e-5)
    assert (event.step, event.tensors, event.missing, event.zero, event.nonfinite) == (1, 4, 0, 0, 0)
    assert len(probe.steps.record.norms) == 6


def test_non_finite_gradients_are_told_at_once_with_their_names():
    """A NaN in one tensor makes the norm NaN, and that tensor is named."""
    probe, model = gradients_probe(), small_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    train(probe, model, optimizer, 2)
    optimizer.zero_grad()
    probe.backward(model(torch.randn(4, 4)).square().mean())
    model[2].bias.grad[1] = math.nan
    probe.take_step(optimizer)
    event = probe.of(Gradients)[-1]
    assert math.isnan(as_number(event.norm))
    assert (event.step, event.nonfinite, event.nonfinite_names) == (3, 1, ["2.bias"])


def test_gradients_that_are_all_zero_are_told_at_once():
    """A loss that does not depend on the weights: every gradient is there, and zero."""
    probe, model = gradients_probe(), small_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    train(probe, model, optimizer, 2)
    optimizer.zero_grad()
    probe.backward(model(torch.randn(4, 4)).sum() * 0)
    probe.take_step(optimizer)
    event = probe.of(Gradients)[-1]
    assert (event.step, event.norm, event.zero, event.tensors) == (3, 0.0, 4, 4)


def test_missing_gradients_are_counted():
    """Parameters that no backward reached have no gradient at all."""
    probe, model = gradients_probe(), small_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    probe.backward(model[0](torch.randn(4, 4)).square().mean())
    probe.take_step(optimizer)
    (event,) = probe.of(Gradients)
    assert (event.tensors, event.missing) == (2, 2)


def test_half_precision_norms_do_not_overflow():
    """The norm of float16 gradients may be larger than float16 can hold, and is no sign of anything."""
    probe = gradients_probe()
    weight = torch.nn.Parameter(torch.ones(100, 100, dtype=torch.float16))
    optimizer = torch.optim.SGD([weight], lr=1e-6)
    probe.backward((weight.float() * 1000).sum())
    probe.take_step(optimizer)
    (event,) = probe.of(Gradients)
    assert math.isclose(event.norm, 1e5, rel_tol=1e-3)
    assert event.nonfinite == 0


def test_sparse_gradients_have_a_norm():
    """Embeddings with sparse gradients are read through their values."""
    probe = gradients_probe()
    table = torch.nn.Embedding(10, 3, sparse=True)
    probe.backward(table(torch.tensor([1, 4])).sum())
    probe.take_step(torch.optim.SGD(table.parameters(), lr=0.1))
    (event,) = probe.of(Gradients)
    assert math.isclose(event.norm, math.sqrt(6), rel_tol=1e-5)


def test_gradients_that_a_closure_computes_are_read_after_the_step():
    """Before such a step there are none, and that means nothing."""
    probe, model = gradients_probe(), small_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    inspector = probe.inspectors[0]
    for _ in range(4):
        optimizer.zero_grad()
        inspector.step_begins(optimizer, True)
        probe.backward(model(torch.randn(4, 4)).square().mean())
        optimizer.step()
        probe.step += 1
        inspector.step_ended(optimizer, True)
    (event,) = probe.of(Gradients)
    assert (event.step, event.tensors, event.missing, event.zero) == (1, 4, 0, 0)


def test_steps_without_any_gradient_are_told_at_once():
    """Nobody called backward: the optimizer holds four tensors and none has a gradient."""
    probe, model = gradients_probe(), small_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(3):
        probe.take_step(optimizer)
    assert [(event.step, event.tensors, event.missing) for event in probe.of(Gradients)] == [
        (n, 0, 4) for n in (1, 2, 3)
    ]


def test_gradients_of_a_further_optimizer_are_told_as_such():
    probe, model, other = gradients_probe(), small_model(), small_model(1)
    train(probe, model, torch.optim.SGD(model.parameters(), lr=0.1), 1)
    train(probe, other, torch.optim.SGD(other.parameters(), lr=0.1), 1)
    assert [event.other_optimizer for event in probe.of(Gradients)] == [False, True]


def test_gradients_that_died_are_found_where_looks_cannot_be_paid_for(monkeypatch):
    """One small gradient is read now and then; only where that is zero, all of them are."""
    probe, model = gradients_probe(), small_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    train(probe, model, optimizer, 2)
    monkeypatch.setattr(probe.budget, "allows", lambda seconds: False, raising=False)
    train(probe, model, optimizer, 30)
    assert [event.step for event in probe.of(Gradients)] == [1], "healthy ones are not looked at"
    for _ in range(30):
        optimizer.zero_grad()
        probe.backward(model(torch.randn(4, 4)).sum() * 0)
        probe.take_step(optimizer)
    assert [(event.step, event.zero) for event in probe.of(Gradients)[1:]] == [(39, 4), (51, 4)]
    before = len(probe.steps.record.norms)
    train(probe, model, optimizer, 30)
    assert len(probe.steps.record.norms) == before + 1, "that they live again is seen once"
    assert probe.steps.record.norms[-1] > 0


def test_scaled_gradients_of_a_fused_step_are_finite_as_long_as_they_are():
    """The scaler's scale is near what a number can hold: the norm is that of the gradients without it."""
    probe = gradients_probe()
    weight = torch.nn.Parameter(torch.ones(10))
    optimizer = torch.optim.AdamW([weight], lr=1e-3, fused=True)
    weight.grad = torch.full((10,), 2.0**120)
    optimizer.grad_scale = torch.tensor([2.0**118])
    for inspector in probe.inspectors:
        inspector.step_begins(optimizer, True)
    (event,) = probe.of(Gradients)
    assert math.isclose(event.norm, 4 * math.sqrt(10), rel_tol=1e-5)
    assert event.nonfinite == 0

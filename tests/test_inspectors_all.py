"""All looks together, as the core runs them."""

import torch
from inspector_stub import StubProbe, train

from holdfast.probe.holdfast_probe.inspectors import all_inspectors
from holdfast.schema.events import Gradients, Graph, StaleGradients, WeightUpdates


def noisy_model():
    torch.manual_seed(7)
    return torch.nn.Sequential(
        torch.nn.Linear(4, 16), torch.nn.Dropout(0.3), torch.nn.Tanh(), torch.nn.Linear(16, 3, dtype=torch.float32)
    )


def trained_weights(probe):
    model = noisy_model()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    train(probe, model, optimizer, 30)
    return [parameter.detach().clone() for parameter in model.parameters()], torch.get_rng_state()


def test_looks_change_no_number_and_draw_none(monkeypatch):
    """Weights and the state of the random numbers are the same bits with all looks and with none."""
    monkeypatch.setattr(torch.nn.Module, "state_dict", torch.nn.Module.state_dict)
    monkeypatch.setattr(torch, "save", torch.save)
    parallel = torch.nn.parallel.DistributedDataParallel
    monkeypatch.setattr(parallel, "__init__", parallel.__init__)
    bare, bare_random = trained_weights(StubProbe())
    probe = StubProbe()
    probe.inspectors = all_inspectors(probe)
    seen, seen_random = trained_weights(probe)
    assert all(torch.equal(one, other) for one, other in zip(bare, seen, strict=True))
    assert torch.equal(bare_random, seen_random)


def test_a_healthy_training_raises_no_alarm(monkeypatch):
    """One event of each ordinary kind, and nothing stuck, left over or outside."""
    monkeypatch.setattr(torch.nn.Module, "state_dict", torch.nn.Module.state_dict)
    monkeypatch.setattr(torch, "save", torch.save)
    parallel = torch.nn.parallel.DistributedDataParallel
    monkeypatch.setattr(parallel, "__init__", parallel.__init__)
    probe = StubProbe()
    probe.inspectors = all_inspectors(probe)
    trained_weights(probe)
    assert [len(probe.of(kind)) for kind in (Graph, WeightUpdates, Gradients, StaleGradients)] == [1, 1, 1, 0]
    assert probe.of(WeightUpdates)[0].stuck == []
    assert probe.notes == []

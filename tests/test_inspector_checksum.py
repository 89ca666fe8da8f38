import torch
from inspector_stub import StubProbe, small_model

from holdfast.probe.holdfast_probe.inspectors.checksum import ChecksumInspector, fingerprint, is_due, split_into_floats
from holdfast.schema.events import Checksum


def number(tensors):
    return split_into_floats(torch, fingerprint(torch, tensors)).tolist()


def test_the_steps_are_the_same_on_every_rank():
    """They follow from the number of the step alone."""
    assert [step for step in range(3001) if is_due(step)] == [1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1000, 2000, 3000]


def test_one_bit_or_another_order_gives_another_number():
    """Equal weights give equal numbers; changes that cancel in a plain sum do not cancel here."""
    weights = [torch.arange(12.0).reshape(3, 4), torch.ones(5)]
    assert number(weights) == number([tensor.clone() for tensor in weights])
    assert number(weights) == number([weights[0].t().contiguous().t(), weights[1]])
    touched = weights[0].clone()
    touched.view(torch.int32)[1, 2] += 1
    assert number(weights) != number([touched, weights[1]])
    touched.view(torch.int32)[2, 2] -= 1
    assert number(weights) != number([touched, weights[1]])
    assert number(weights) != number(weights[::-1])


def test_only_replicated_weights_are_summed(monkeypatch):
    """Without a DistributedDataParallel object nothing promises that ranks are equal."""

    class Replicated(torch.nn.Module):
        def __init__(self, module):
            super().__init__()
            self.module = module

    monkeypatch.setattr(torch.nn.parallel, "DistributedDataParallel", Replicated)
    probe = StubProbe()
    inspector = ChecksumInspector(probe)
    probe.world_size, probe.step = 2, 1
    inspector.step_ended(None, True)
    assert probe.events == []
    assert probe.missing["rank checksums"].startswith("no DistributedDataParallel")
    replica = torch.nn.parallel.DistributedDataParallel(small_model())
    for step in (2, 3, 4):
        probe.step = step
        inspector.step_ended(None, True)
    told = probe.of(Checksum)
    assert [(event.step, event.tensors, event.rank) for event in told] == [(2, 4, 0), (4, 4, 0)]
    assert told[0].value == told[1].value
    with torch.no_grad():
        replica.module[0].bias += 1
    probe.step = 8
    inspector.step_ended(None, True)
    assert probe.of(Checksum)[-1].value != told[0].value

import torch
from inspector_stub import StubProbe, small_model

from holdfast.probe.holdfast_probe.param_names import ParamNames, plain


def test_names_come_from_the_model_that_the_optimizer_trains():
    """A copy of the model beside it (an average) does not take its names."""
    probe, model = StubProbe(), small_model()
    copy = small_model()
    probe.optimizers = [torch.optim.SGD(model.parameters(), lr=0.1)]
    names = ParamNames(probe)
    assert names.of(model[2].weight) == "2.weight"
    assert names.of(copy[2].weight) == "Sequential.2.weight"
    assert [sorted(model) for model in names.live()] == [["0.bias", "0.weight", "2.bias", "2.weight"]]


def test_wrappers_add_nothing_to_a_name():
    """DDP and torch.compile put a component in front that says nothing."""
    assert plain("module._orig_mod.layer.0.weight") == "layer.0.weight"


def test_a_tensor_of_no_module_is_told_by_its_place():
    """A plain list of tensors has places in the optimizer and no names."""
    probe, loose = StubProbe(), torch.nn.Parameter(torch.ones(2, 3))
    probe.optimizers = [torch.optim.SGD([torch.nn.Parameter(torch.ones(1)), loose], lr=0.1)]
    assert ParamNames(probe).of(loose) == "group 0, tensor 1 [2, 3]"


def test_two_models_are_told_apart():
    """With a generator and a discriminator, the class stands before the name."""

    class Generator(torch.nn.Linear):
        pass

    class Discriminator(torch.nn.Linear):
        pass

    probe, generator, discriminator = StubProbe(), Generator(2, 2), Discriminator(2, 1)
    probe.optimizers = [
        torch.optim.SGD(discriminator.parameters(), lr=0.1),
        torch.optim.SGD(generator.parameters(), lr=0.1),
    ]
    names = ParamNames(probe)
    assert names.of(generator.bias) == "Generator.bias"
    assert names.of(discriminator.weight) == "Discriminator.weight"

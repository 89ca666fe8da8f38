"""A module's tensors are found as `state_dict` finds them, whatever the module is made of and whatever becomes of it."""

import pytest
import torch
from torch import nn
from torch.nn.utils import parametrize

from holdfast.probe.holdfast_probe.snapshots.module_state import ModuleTensors
from holdfast.probe.holdfast_probe.snapshots.stateful import StatefulObjects


class Doubled(nn.Module):
    def forward(self, x):
        return 2 * x


class Passing(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("kept", torch.ones(2))
        self.register_buffer("passing", torch.zeros(2), persistent=False)
        self.register_buffer("nothing", None)
        self.register_parameter("no_bias", None)


class TellsMore(nn.Linear):
    def get_extra_state(self):
        return {"seen": 3}

    def set_extra_state(self, state):
        self.seen = state["seen"]


def tied():
    one = nn.Linear(2, 2)
    other = nn.Linear(2, 2)
    other.weight = one.weight
    return nn.Sequential(one, other, one)


def parametrized():
    return parametrize.register_parametrization(nn.Linear(2, 2), "weight", Doubled())


def with_a_hook():
    net = nn.Sequential(nn.Linear(2, 2))
    net[0].register_state_dict_post_hook(lambda _m, state, prefix, _meta: state.__delitem__(prefix + "bias"))
    return net


def with_its_own_way():
    net = nn.Linear(2, 2)
    net.state_dict = lambda *_, **__: {"only": net.weight}
    return net


PLAIN = {
    "layers": lambda: nn.Sequential(nn.Conv2d(1, 2, 1), nn.BatchNorm2d(2), nn.Sequential(nn.Linear(2, 2))),
    "passing buffers": lambda: nn.Sequential(Passing(), nn.Linear(2, 2)),
    "tied": tied,
    "parametrized": parametrized,
    "one layer": lambda: nn.Linear(2, 1),
    "nothing": nn.Sequential,
}
SPECIAL = {
    "extra state": lambda: nn.Sequential(TellsMore(2, 2)),
    "a hook": with_a_hook,
    "its own way": with_its_own_way,
    "a script": lambda: torch.jit.script(nn.Sequential(nn.Linear(2, 2))),
    "lazy": lambda: nn.Sequential(nn.LazyLinear(2)),
}


def same(found, module):
    parameters, buffers, _ = found
    asked = module.state_dict(keep_vars=True)
    return {**parameters, **buffers}.keys() == asked.keys() and all(
        {**parameters, **buffers}[name] is tensor for name, tensor in asked.items()
    )


@pytest.mark.parametrize("name", PLAIN)
def test_it_is_what_state_dict_gives(name):
    module = PLAIN[name]()
    tensors = ModuleTensors(torch, module)
    for _ in range(2):
        found = tensors.get_tensors()
        assert same(found, module)
        assert all(isinstance(parameter, nn.Parameter) for parameter in found[0].values())
        assert not any(isinstance(buffer, nn.Parameter) for buffer in found[1].values())


@pytest.mark.filterwarnings("ignore:.*torch.jit.script.*:DeprecationWarning")
@pytest.mark.parametrize("name", SPECIAL)
def test_one_that_tells_its_state_in_its_own_way_is_asked(name):
    module = SPECIAL[name]()
    assert ModuleTensors(torch, module).get_tensors() is None
    if name != "lazy":  # which has no numbers yet
        kept = StatefulObjects(torch, {"module": module}).state()["module"]["state"]
        assert kept.keys() == module.state_dict().keys()


def test_passing_buffers_are_found_too():
    _, buffers, passing = ModuleTensors(torch, nn.Sequential(Passing())).get_tensors()
    assert (list(buffers), list(passing)) == (["0.kept"], ["0.passing"])


@pytest.mark.parametrize(
    "change",
    [
        lambda net: net.append(nn.Linear(2, 2)),
        lambda net: net.__delitem__(1),
        lambda net: net.__setitem__(0, nn.Linear(2, 2)),
        lambda net: setattr(net[0], "bias", None),
        lambda net: setattr(net[0], "bias", nn.Parameter(torch.ones(2))),
        lambda net: net[1].register_buffer("more", torch.ones(1)),
        lambda net: (delattr(net[0], "bias"), net[0].register_parameter("other", nn.Parameter(torch.ones(2)))),
        lambda net: parametrize.register_parametrization(net[0], "weight", Doubled()),
        lambda net: net.requires_grad_(requires_grad=False),
        lambda net: net.double(),
        lambda net: net[2].register_buffer("seen", torch.ones(1)),
        lambda net: (delattr(net[1], "running_mean"), setattr(net[1], "running_mean", nn.Parameter(torch.ones(2)))),
        lambda net: net._modules.update(last=net._modules.pop("0")),
    ],
)
def test_a_module_that_changes_is_looked_through_again(change):
    net = nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2), nn.ReLU())
    tensors = ModuleTensors(torch, net)
    tensors.get_tensors()
    change(net)
    found = tensors.get_tensors()
    assert same(found, net)
    assert all(isinstance(parameter, nn.Parameter) for parameter in found[0].values())
    assert not any(isinstance(buffer, nn.Parameter) for buffer in found[1].values())


def half_a_step(net, optimizer):
    net(torch.ones(1, 2)).sum().backward()
    optimizer.step()


def test_gradients_come_back_whoever_holds_the_parameter():
    """Most are kept under their module; those that only an optimizer knows are kept there, once."""
    net, free = nn.Linear(2, 2), nn.Parameter(torch.ones(3))
    optimizer = torch.optim.SGD([{"params": net.parameters()}, {"params": [free], "lr": 0.1}], lr=0.5)
    parts = StatefulObjects(torch, {"optimizer": optimizer, "net": net})
    half_a_step(net, optimizer)
    free.grad = torch.full((3,), 7.0)
    kept = parts.state()
    assert list(kept["optimizer"]["gradients"]) == ["1.0"]
    before = {name: parameter.grad.clone() for name, parameter in net.named_parameters()}
    optimizer.zero_grad()
    parts.restore(kept)
    assert free.grad.tolist() == [7.0] * 3
    assert all(torch.equal(parameter.grad, before[name]) for name, parameter in net.named_parameters())


def test_a_snapshot_of_before_comes_back():
    """Older ones kept the gradients of modules twice, and an optimizer's state as it gives it."""
    net = nn.Linear(2, 2)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.5, momentum=0.9)
    half_a_step(net, optimizer)
    gradients = [parameter.grad.clone() for parameter in net.parameters()]
    old = {
        "net": {
            "state": net.state_dict(),
            "gradients": dict(zip(("weight", "bias"), gradients, strict=True)),
            "frozen": [],
        },
        "optimizer": {"state": optimizer.state_dict(), "gradients": {"0.0": gradients[0], "0.1": gradients[1]}},
    }
    optimizer.zero_grad()
    StatefulObjects(torch, {"net": net, "optimizer": optimizer}).restore(old)
    assert all(torch.equal(p.grad, gradient) for p, gradient in zip(net.parameters(), gradients, strict=True))


@pytest.mark.parametrize("kind", [torch.optim.AdamW, torch.optim.SGD, torch.optim.Rprop])
@pytest.mark.parametrize("trained", ["none", "all", "one of two"])
def test_an_optimizers_state_comes_back(kind, trained):
    """Also where it knows something of some parameters only, or not the same of all."""

    def made():
        net = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))
        options = {"lr": 0.1, "momentum": 0.9} if kind is torch.optim.SGD else {"lr": 0.1}
        return net, kind(net.parameters(), **options)

    net, optimizer = made()
    if trained != "none":
        if trained == "one of two":
            net[1].requires_grad_(requires_grad=False)
        half_a_step(net, optimizer)
    other_net, other = made()
    StatefulObjects(torch, {"net": other_net, "optimizer": other}).restore(
        StatefulObjects(torch, {"net": net, "optimizer": optimizer}).state()
    )
    then, now = optimizer.state_dict(), other.state_dict()
    assert now["param_groups"] == then["param_groups"]
    assert now["state"].keys() == then["state"].keys()
    for place, row in then["state"].items():
        assert row.keys() == now["state"][place].keys()
        assert all(
            torch.equal(value, now["state"][place][name])
            if torch.is_tensor(value)
            else value == now["state"][place][name]
            for name, value in row.items()
        )

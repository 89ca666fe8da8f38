"""Objects get back what was kept of them, also where `load_state_dict` alone would not give it."""

from __future__ import annotations

import contextlib
from collections import Counter, OrderedDict, defaultdict, deque

import numpy as np
import pytest
import torch
from torch import nn

from holdfast.probe.holdfast_probe.guard import CannotResume, guard
from holdfast.probe.holdfast_probe.snapshots.encoding import UnsupportedValue, flatten
from holdfast.probe.holdfast_probe.snapshots.restore import clone_tensors


class Stop(Exception):
    pass


def kept(folder, use=lambda run: None, **parts):
    """A life that ends right after a snapshot of these."""
    with contextlib.suppress(Stop), guard(folder=folder, **parts) as run:
        use(run)
        run.snapshot()
        raise Stop


def given_back(folder, **parts):
    with guard(folder=folder, **parts) as run:
        pass
    return run


def trained(optimizer, model, steps=3):
    for n in range(steps):
        optimizer.zero_grad()
        model(torch.full((2, 3), n + 1.0, dtype=model.weight.dtype)).pow(2).sum().backward()
        optimizer.step()


class Master(torch.optim.Optimizer):
    """Keeps weights of full precision for those of half."""

    def __init__(self, parameters):
        super().__init__(parameters, {})

    @torch.no_grad()
    def step(self, closure=None):
        for parameter in self.param_groups[0]["params"]:
            state = self.state[parameter]
            if not state:
                state["master"] = parameter.float().clone()
            state["master"].sub_(parameter.grad.float(), alpha=1e-3)
            parameter.copy_(state["master"])


@pytest.mark.parametrize(("kind", "numbers"), [(Master, torch.bfloat16), (torch.optim.NAdam, torch.float64)])
def test_an_optimizer_keeps_the_precision_that_it_had(tmp_path, kind, numbers):
    model = nn.Linear(3, 2).to(numbers)
    optimizer = kind(model.parameters())
    trained(optimizer, model)
    kept(tmp_path, model=model, optimizer=optimizer)
    again = nn.Linear(3, 2).to(numbers)
    given = kind(again.parameters())
    given_back(tmp_path, model=again, optimizer=given)
    for was, now in zip(optimizer.state.values(), given.state.values(), strict=True):
        assert {name: (value.dtype, value.tolist()) for name, value in was.items()} == {
            name: (value.dtype, value.tolist()) for name, value in now.items()
        }


def test_moments_follow_weights_that_are_of_another_precision_now(tmp_path):
    model = nn.Linear(3, 2)
    optimizer = torch.optim.Adam(model.parameters())
    trained(optimizer, model)
    kept(tmp_path, model=model, optimizer=optimizer)
    again = nn.Linear(3, 2).double()
    given = torch.optim.Adam(again.parameters())
    given_back(tmp_path, model=again, optimizer=given)
    assert {state["exp_avg"].dtype for state in given.state.values()} == {torch.float64}
    trained(given, again)


class Remembering(nn.Linear):
    def __init__(self, persistent):
        super().__init__(3, 1)
        self.register_buffer("seen", torch.zeros(0), persistent=persistent)
        self.register_buffer("later", None, persistent=persistent)
        self.register_buffer("over_itself", torch.arange(3.0).expand(4, 3), persistent=persistent)


@pytest.mark.parametrize("persistent", [True, False])
def test_buffers_that_grow_or_come_later_are_given_back(tmp_path, persistent):
    model = Remembering(persistent)
    model.seen, model.later = torch.tensor([1.0, 2.0]), torch.ones(2, 2)
    kept(tmp_path, model=model)
    again = Remembering(persistent)
    given_back(tmp_path, model=again)
    assert again.seen.tolist() == [1.0, 2.0]
    assert torch.equal(again.later, torch.ones(2, 2))
    assert torch.equal(again.over_itself, model.over_itself)


def test_another_width_is_another_training(tmp_path):
    """Only buffers may have grown."""
    kept(tmp_path, model=nn.BatchNorm1d(3))
    with pytest.raises(CannotResume, match="size mismatch"):
        given_back(tmp_path, model=nn.BatchNorm1d(4))


class Versioned(nn.Linear):
    _version = 2

    def _load_from_state_dict(self, state_dict, prefix, local_metadata, *more):
        assert local_metadata["version"] == 2
        super()._load_from_state_dict(state_dict, prefix, local_metadata, *more)


def test_modules_hear_of_which_version_their_state_is(tmp_path):
    model = nn.Sequential(Versioned(3, 1))
    kept(tmp_path, model=model)
    again = nn.Sequential(Versioned(3, 1))
    given_back(tmp_path, model=again)
    assert torch.equal(again[0].weight, model[0].weight)


class RngParity(nn.Linear):
    """Has a generator of its own, whose state torch reads from where its memory begins."""

    def __init__(self):
        super().__init__(3, 1)
        self.drawn_from = torch.Generator().manual_seed(1)

    def get_extra_state(self):
        return self.drawn_from.get_state()

    def set_extra_state(self, state):
        self.drawn_from.set_state(state)


def test_states_of_generators_can_be_set(tmp_path):
    """A view of a snapshot's block would crash the process."""
    model, generator = RngParity(), torch.Generator().manual_seed(2)
    torch.rand(3, generator=model.drawn_from)
    torch.rand(5, generator=generator)
    kept(tmp_path, model=model, use=lambda run: run.state.update(g=OrderedDict(g=[generator.get_state()])))
    again, other = RngParity(), torch.Generator()
    run = given_back(tmp_path, model=again)
    other.set_state(run.state["g"]["g"][0])
    assert torch.rand(1, generator=other) == torch.rand(1, generator=generator)
    assert torch.rand(1, generator=again.drawn_from) == torch.rand(1, generator=model.drawn_from)


def test_sparse_gradients_are_kept(tmp_path):
    model = nn.Embedding(5, 2, sparse=True)
    model(torch.tensor([1, 2, 1])).sum().backward()
    kept(tmp_path, model=model)
    again = nn.Embedding(5, 2, sparse=True)
    given_back(tmp_path, model=again)
    assert again.weight.grad.layout is torch.sparse_coo
    assert again.weight.grad.is_coalesced() == model.weight.grad.is_coalesced()
    assert torch.equal(again.weight.grad.to_dense(), model.weight.grad.to_dense())


def test_a_scaler_that_is_switched_on_now_begins_afresh(tmp_path):
    model = nn.Linear(3, 1)
    kept(tmp_path, model=model, scaler=torch.amp.GradScaler("cpu", enabled=False))
    scaler = torch.amp.GradScaler("cpu", enabled=True)
    given_back(tmp_path, model=model, scaler=scaler)
    assert scaler.is_enabled()


def test_containers_keep_their_kind_and_own_their_tensors():
    block = torch.arange(6.0)
    made = {
        "default": defaultdict(list, a=[block[1:3]]),
        "ordered": OrderedDict(b=block[2:4]),
        "counted": Counter("aab"),
        "queue": deque([block[3:5]], maxlen=2),
        "several": (block[4:], {1, 2}, frozenset({3})),
    }
    given = clone_tensors(torch, made)
    assert repr(given) == repr(made)
    block.zero_()
    assert given["default"]["a"][0].tolist() == [1.0, 2.0]
    assert given["queue"].maxlen == 2


@pytest.mark.filterwarnings("ignore:the matrix subclass")
def test_numpy_arrays_on_disk_are_kept_whole_and_other_kinds_refused(tmp_path):
    mapped = np.memmap(tmp_path / "m", dtype="f4", mode="w+", shape=(3,))
    mapped[:] = [1, 2, 3]
    model = nn.Linear(1, 1)
    kept(tmp_path / "s", model=model, use=lambda run: run.state.update(mapped=mapped))
    assert given_back(tmp_path / "s", model=model).state["mapped"].tolist() == [1, 2, 3]
    for refused in (np.matrix([[1, 2]]), np.str_("")):
        with pytest.raises(UnsupportedValue, match="NumPy"):
            flatten(torch, {"it": refused}, [])

"""What objects of a training have that no `state_dict` tells, killed at every batch: parameters that only an optimizer holds, groups that
it was given on the way, modes of modules, and what the program keeps in `run.state`.
"""

from __future__ import annotations

import contextlib
import json
from collections import OrderedDict, deque

import numpy as np
import pytest
import torch
from guarded import Lives
from torch import nn

from holdfast.probe.holdfast_probe.guard import CannotResume, Guard, guard
from holdfast.probe.holdfast_probe.snapshots.stateful import StatefulObjects
from holdfast.probe.holdfast_probe.snapshots.user_state import restore_user_state

BATCHES, EPOCHS = 4, 4
LAST = BATCHES * EPOCHS
NEVER = 1e9


class Stop(Exception):
    """Stands for a death."""


def network():
    torch.manual_seed(1)
    return nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Dropout(0.3), nn.Linear(4, 1))


def error_of(model, x):
    return (model(x) - x.sum(1, keepdim=True)).square().mean()


class Training:
    """One that a case changes where it wants to. What it came to is all of its numbers."""

    def __init__(self):
        self.model = network()
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.05, momentum=0.9)

    def parts(self):
        return {"model": self.model, "optimizer": self.optimizer}

    def before_the_loop(self, run):
        """After guard is entered."""

    def before_the_pass(self, run, epoch):
        pass

    def loss(self, x):
        return error_of(self.model, x)

    def after_the_batch(self, run, number, loss):
        pass

    def numbers(self, run):
        return []

    def life(self, folder, at=lambda *_: None, **options):
        torch.manual_seed(2)
        torch.set_num_threads(1)
        data = torch.linspace(-1, 1, BATCHES * 6 * 3).view(-1, 3).sin()
        loader = torch.utils.data.DataLoader(data, batch_size=6, shuffle=True)
        with guard(folder=folder, **self.parts(), **options) as run:
            self.before_the_loop(run)
            for epoch in run.epochs(EPOCHS):
                self.before_the_pass(run, epoch)
                for x in run.batches(loader):
                    self.optimizer.zero_grad()
                    loss = self.loss(x)
                    loss.backward()
                    self.optimizer.step()
                    self.after_the_batch(run, run._position, loss.item())
                    run._snapshots.flush()
                    at("after batch", run._position)
        state = [self.model.state_dict(), self.optimizer.state_dict(), self.numbers(run)]
        return json.dumps(state, default=lambda tensor: tensor.tolist())


# --- parameters that only an optimizer holds ---------------------------------------------------------------------------


class Weighed(Training):
    """Two errors, weighed by what is learned (Kendall); one of the weights is frozen from epoch 1 on."""

    def __init__(self):
        super().__init__()
        self.weights = [nn.Parameter(torch.zeros(1)), nn.Parameter(torch.zeros(2))]
        groups = [{"params": self.model.parameters()}, {"params": self.weights, "lr": 0.01}]
        self.optimizer = torch.optim.Adam(groups, lr=0.02)

    def loss(self, x):
        of_one, of_two = self.weights
        errors = error_of(self.model, x), self.model(x).abs().mean()
        return (errors[0] * (-of_one).exp() + of_one).sum() + (errors[1] * (-of_two).exp() + of_two).sum()

    def after_the_batch(self, run, number, loss):
        if number == BATCHES:
            self.weights[0].requires_grad_(requires_grad=False)

    def numbers(self, run):
        return [*self.weights, self.weights[0].requires_grad]


class Forgotten(Training):
    """Of two models guard is given one; the optimizer has both."""

    def __init__(self):
        super().__init__()
        self.other = nn.Linear(3, 3)
        self.optimizer = torch.optim.AdamW([*self.model.parameters(), *self.other.parameters()], lr=0.02)

    def loss(self, x):
        return error_of(self.model, self.other(x))

    def numbers(self, run):
        return list(self.other.parameters())


# --- groups that are added while it trains -----------------------------------------------------------------------------


class Unfrozen(Training):
    """From the last layer to the first, one more with each epoch, each with its own rate."""

    named = False

    def __init__(self):
        super().__init__()
        self.optimizer = torch.optim.SGD(self.of(3), lr=0.05, momentum=0.9)
        self.schedule = torch.optim.lr_scheduler.StepLR(self.optimizer, 3, gamma=0.9)

    def of(self, layer):
        return list(self.model[layer].named_parameters() if self.named else self.model[layer].parameters())

    def parts(self):
        return {**super().parts(), "schedule": self.schedule}

    def before_the_pass(self, run, epoch):
        if epoch == 1:
            self.optimizer.add_param_group({"params": self.of(1), "lr": 0.02})
        if epoch == 2:
            self.optimizer.add_param_group({"params": self.of(0), "lr": 0.01, "weight_decay": 0.1})

    def after_the_batch(self, run, number, loss):
        self.schedule.step()


class UnfrozenByName(Unfrozen):
    named = True


class UnfrozenWithin(Unfrozen):
    """After so many batches, not epochs."""

    def before_the_pass(self, run, epoch):
        pass

    def after_the_batch(self, run, number, loss):
        self.schedule.step()
        if number in (2, BATCHES + 2):
            self.optimizer.add_param_group({"params": self.of(1 if number == 2 else 0), "lr": 0.02})


class Joined(Training):
    """Parameters that no module has are added in the epoch before the last."""

    def __init__(self):
        super().__init__()
        self.scale = nn.Parameter(torch.ones(1))

    def before_the_pass(self, run, epoch):
        if epoch == EPOCHS - 1:
            self.optimizer.add_param_group({"params": [self.scale], "lr": 0.01})

    def loss(self, x):
        return error_of(self.model, x) * self.scale.square().sum()

    def numbers(self, run):
        return [self.scale]


class HoldsGroups(Training):
    """It took the groups from the optimizer before guard was entered, and sets rates in them."""

    def __init__(self):
        super().__init__()
        self.groups = self.optimizer.param_groups
        self.group = self.groups[0]

    def after_the_batch(self, run, number, loss):
        self.group["lr"] = 0.05 / number
        self.groups[0]["momentum"] = 0.9 - number / 100


# --- modes -------------------------------------------------------------------------------------------------------------


class NormsFrozen(Training):
    def before_the_pass(self, run, epoch):
        if epoch == 1:
            self.model[1].eval()


class DropsNoMore(Training):
    """From the middle of an epoch on. Another epoch begins with all of it in training mode."""

    def before_the_pass(self, run, epoch):
        if epoch == 2:
            self.model.train()

    def after_the_batch(self, run, number, loss):
        if number == BATCHES - 2:
            self.model[2].eval()

    def numbers(self, run):
        return [module.training for module in self.model]


class EvaluatesWithin(Training):
    """After every second batch, and back to training only in the loss of the next. What it draws in between is nothing."""

    def __init__(self):
        super().__init__()
        self.scores = []

    def before_the_loop(self, run):
        self.scores = run.state["scores"] = []

    def loss(self, x):
        self.scores.append(self.model.training)
        self.model.train()
        return super().loss(x)

    def after_the_batch(self, run, number, loss):
        if number % 2:
            self.model.eval()
            self.scores.append(self.model(torch.ones(2, 3)).sum().item())

    def numbers(self, run):
        return self.scores


# --- what the program keeps itself -------------------------------------------------------------------------------------


class Keeps(Training):
    """Of all kinds, made before the loop as on a fresh start, and held in variables, too."""

    def before_the_loop(self, run):
        self.losses = run.state["losses"] = []
        self.newest = run.state["newest"] = deque(maxlen=3)
        self.sum = run.state["sum"] = torch.zeros(1)
        self.counts = run.state["counts"] = np.zeros((2, 3))
        self.curves = run.state["curves"] = {"even": [], "odd": [], "mean": torch.zeros(1)}
        self.even, self.mean = self.curves["even"], self.curves["mean"]
        self.seen = run.state["seen"] = set()
        run.state["made"] = 0
        run.state["best"] = self.model.state_dict()  # the very weights; later, a copy of them
        run.state["weights"] = self.model[0].weight.detach()  # which they stay

    def before_the_pass(self, run, epoch):
        self.losses.append(f"epoch {epoch}")
        self.of_this_epoch = run.state["of this epoch"] = []

    def after_the_batch(self, run, number, loss):
        for some in (
            self.losses,
            self.newest,
            self.of_this_epoch,
            self.even if number % 2 == 0 else self.curves["odd"],
        ):
            some.append(loss)
        self.sum.add_(loss)
        self.mean.add_(loss / LAST)
        self.counts[number % 2] += loss
        self.seen.add(number % 5)
        run.state["made"] += 1
        if number in (2, 7):
            run.state["best"] = {name: value.clone() for name, value in self.model.state_dict().items()}

    def numbers(self, run):
        held = [
            self.losses,
            [*self.newest],
            self.sum,
            self.counts,
            self.curves,
            self.even,
            self.mean,
            self.of_this_epoch,
        ]
        state = {name: [*value] if isinstance(value, (set, deque)) else value for name, value in run.state.items()}
        return [held, state]


CASES = [
    Weighed,
    Forgotten,
    Unfrozen,
    UnfrozenByName,
    UnfrozenWithin,
    Joined,
    HoldsGroups,
    NormsFrozen,
    DropsNoMore,
    EvaluatesWithin,
    Keeps,
]


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.__name__)
@pytest.mark.parametrize("deaths", [range(1, LAST + 1), (BATCHES + 3, LAST - 2)], ids=["at each batch", "at two"])
def test_killed_it_ends_the_same(tmp_path, case, deaths):
    """Every snapshot is on the disk before the next batch: in the epoch in which something was changed, in those after it, and between."""
    case().life(tmp_path / "warm")  # what torch imports late is imported before anything is forked

    def training(folder, **options):
        return case().life(folder, **options)

    whole = Lives(tmp_path / "whole", training=training).to_the_end([])
    killed = Lives(tmp_path / "killed", training=training, max_lost_work=0.0)
    assert json.loads(killed.to_the_end([("after batch", number) for number in deaths])) == json.loads(whole)


def kept(folder, parts, change=lambda: None):
    with contextlib.suppress(Stop), guard(folder=folder, max_lost_work=NEVER, **parts) as run:
        for _ in run.epochs(2):
            for _ in run.batches([1, 2]):
                change()
                run.snapshot()
                if run._position == 2:
                    raise Stop


def gone_on(folder, parts):
    with guard(folder=folder, **parts) as run:
        for _ in run.epochs(2):
            for _ in run.batches([1, 2]):
                pass


def test_a_group_that_cannot_be_made_again_is_told_of_truly(tmp_path):
    """Its parameters are in nothing that guard knows. Nobody is told to remove good work; where the program adds the group first, it goes on."""

    def made():
        model, free = nn.Linear(2, 1), nn.Parameter(torch.full((1,), 5.0))
        return {"model": model, "optimizer": torch.optim.SGD(model.parameters(), lr=0.1)}, free

    parts, free = made()

    def add():
        if len(parts["optimizer"].param_groups) == 1:
            parts["optimizer"].add_param_group({"params": [free], "lr": 0.3})

    kept(tmp_path, parts, add)
    before = sorted(tmp_path.iterdir())
    with pytest.raises(CannotResume, match=r"is valid, but optimizer .*group 1 was added during the training") as told:
        gone_on(tmp_path, made()[0])
    assert "remove" not in str(told.value)
    assert sorted(tmp_path.iterdir()) == before
    again, other = made()
    other.data.zero_()
    again["optimizer"].add_param_group({"params": [other]})
    gone_on(tmp_path, again)
    assert other.item() == 5.0
    assert again["optimizer"].param_groups[1]["lr"] == 0.3


def test_an_optimizer_that_is_made_with_other_groups_is_told_of_by_their_number(tmp_path):
    model = nn.Linear(2, 1)
    two = torch.optim.SGD([{"params": [model.weight]}, {"params": [model.bias]}], lr=0.1)
    kept(tmp_path, {"model": model, "optimizer": two})
    with pytest.raises(
        CannotResume,
        match=r"is valid, but optimizer .*the snapshot has 2 parameter groups, but the optimizer has 1 now",
    ):
        gone_on(tmp_path, {"model": model, "optimizer": torch.optim.SGD(model.parameters(), lr=0.1)})


def test_before_the_place_an_optimizer_has_what_it_was_of_the_groups_that_are_there():
    """A rate that is read on the way is the one of then."""
    model = network()
    optimizer = torch.optim.SGD(model[3].parameters(), lr=0.1, momentum=0.9)
    then = StatefulObjects(torch, {"model": model, "optimizer": optimizer})
    optimizer.add_param_group({"params": model[0].parameters(), "lr": 0.2})
    optimizer.param_groups[0]["lr"] = 0.7
    error_of(model, torch.ones(2, 3)).backward()
    optimizer.step()
    state = then.state()
    other = network()
    given = torch.optim.SGD(other[3].parameters(), lr=0.1, momentum=0.9)
    now = StatefulObjects(torch, {"model": other, "optimizer": given})
    now.restore(state, before_resume_point=True)
    assert [group["lr"] for group in given.param_groups] == [0.7]
    moments = [optimizer.state[p]["momentum_buffer"] for p in model[3].parameters()]
    assert all(
        torch.equal(given.state[p]["momentum_buffer"], was)
        for p, was in zip(other[3].parameters(), moments, strict=True)
    )
    now.restore(state)
    assert [group["lr"] for group in given.param_groups] == [0.7, 0.2]
    assert given.param_groups[1]["params"] == [*other[0].parameters()]


def test_a_parameter_of_another_shape_is_another_training(tmp_path):
    model = nn.Linear(2, 1)
    kept(tmp_path, {"model": model, "optimizer": torch.optim.SGD([nn.Parameter(torch.ones(2))], lr=0.1)})
    with pytest.raises(CannotResume, match=r"a different training.*shape \(1,\), but the snapshot has \(2,\)"):
        gone_on(tmp_path, {"model": model, "optimizer": torch.optim.SGD([nn.Parameter(torch.ones(1))], lr=0.1)})


def test_a_snapshot_of_before_is_gone_on_from(tmp_path, monkeypatch):
    """Older ones have no modes, and of parameters that only an optimizer holds no values."""
    collect = Guard._collect

    def as_before(run):
        state = collect(run)
        for name in ("values", "frozen"):
            del state["parts"]["optimizer"][name]
        return {name: value for name, value in state.items() if name != "modes"}

    free = nn.Parameter(torch.ones(1))
    parts = {"model": network(), "optimizer": torch.optim.SGD([free], lr=0.1)}
    monkeypatch.setattr(Guard, "_collect", as_before)
    kept(tmp_path, parts, parts["model"].eval)
    monkeypatch.undo()
    parts["model"].train()
    gone_on(tmp_path, parts)
    assert parts["model"].training


def test_a_module_that_tells_its_state_in_its_own_way_has_its_modes_back(tmp_path):
    class Told(nn.Linear):
        def get_extra_state(self):
            return 1

        def set_extra_state(self, state):
            pass

    models = [nn.Sequential(Told(2, 2), nn.Dropout()) for _ in range(2)]
    kept(tmp_path, {"model": models[0]}, models[0][1].eval)
    gone_on(tmp_path, {"model": models[1]})
    assert [module.training for module in models[1].modules()] == [True, True, False]


def filled(now, then, memory=()):
    state = {"it": now}
    restore_user_state(torch, state, {"it": then}, memory)
    return state["it"]


@pytest.mark.parametrize(
    ("now", "then"),
    [
        ([1], [2, 3]),
        ({"a": 1, "b": 2}, {"b": 3}),
        (OrderedDict(a=1), OrderedDict(b=1, a=2)),
        ({1}, {2}),
        (deque([1]), deque([2, 3])),
        (np.zeros(4).reshape(2, 2), np.eye(2)),
        (torch.zeros(4).view(2, 2), torch.eye(2)),
    ],
    ids=lambda value: type(value).__name__,
)
def test_what_is_there_is_filled(now, then):
    out = filled(now, then)
    assert out is now
    assert repr(out) == repr(then)


@pytest.mark.parametrize(
    ("now", "then"),
    [
        ([1], (2,)),
        (None, [1]),
        (3, {"a": 1}),
        (torch.zeros(2), torch.ones(3)),
        (torch.zeros(2), torch.ones(2, dtype=torch.float64)),
        (torch.zeros(4)[:2], torch.ones(2)),
        (np.zeros(4)[:2], np.ones(2)),
        (torch.zeros(1).expand(2), torch.ones(2)),
        (np.zeros(2), np.ones(2, dtype="f4")),
    ],
)
def test_what_is_of_another_kind_or_a_part_of_something_is_replaced(now, then):
    """A tensor that is a slice of a dataset is not written to."""
    before = repr(now)
    out = filled(now, then)
    assert repr(out) == repr(then)
    assert repr(now) == before
    assert out is not then or isinstance(then, tuple)


def test_weights_of_a_model_are_not_written_to():
    """Nor parameters that only an optimizer holds."""
    model, free = nn.Linear(2, 1), nn.Parameter(torch.ones(1, 2))
    memory = StatefulObjects(torch, {"model": model, "optimizer": torch.optim.SGD([free], lr=0.1)}).memory()
    for weight in (model.weight, free):
        was = weight.tolist()
        assert filled(weight.detach(), torch.zeros(1, 2), memory).tolist() == [[0.0, 0.0]]
        assert weight.tolist() == was


def test_one_object_under_two_names_is_two_if_it_was_two():
    one = [1]
    state = {"a": one, "b": one, "c": one}
    restore_user_state(torch, state, {"a": [2], "b": [3], "c": [2]}, ())
    assert state == {"a": [2], "b": [3], "c": [2]}
    assert state["a"] is state["c"] is one

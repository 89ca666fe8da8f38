"""A training under `holdfast.guard` that is killed comes to the same end, bit for bit."""

from __future__ import annotations

import contextlib
import random

import pytest
import torch
from guarded import BATCHES, EPOCHS, Augmented, Lives, train
from torch import nn

from holdfast.probe.holdfast_probe.guard import CannotResume, guard

PLACES = [
    ("after batch", 1),
    ("entered", 0),
    ("after batch", 3),
    ("in backward", 6),
    ("after batch", BATCHES),
    ("validation", 0),
    ("epoch's end", 0),
    ("after batch", BATCHES + 1),
    ("entered", 0),
    ("after batch", 2 * BATCHES + 7),
    ("validation", 2),
    ("in backward", 3 * BATCHES + 8),
    ("after batch", EPOCHS * BATCHES),
    ("epoch's end", EPOCHS - 1),
]


class Stop(Exception):
    pass


def used(folder, model, things, stop):
    """What one life uses of these: it ends before the one that would be number `stop`, after a snapshot."""
    seen = []

    def use(thing):
        if len(seen) == stop:
            raise Stop
        seen.append(thing)

    with contextlib.suppress(Stop), guard(folder=folder, model=model) as run:
        for _ in run.epochs(1):
            for thing in run.batches(things):
                use(thing)
                run.snapshot()
    return seen


@pytest.fixture(scope="module", autouse=True)
def warm(tmp_path_factory):
    """What torch imports late is imported before anything is forked."""
    train(tmp_path_factory.mktemp("warm") / "s")


@pytest.mark.parametrize(
    ("workers", "persistent", "own_generator"),
    [(0, False, False), (0, False, True), (2, False, False), (2, True, False), (2, False, True), (3, False, False)],
)
def test_killed_at_every_named_place_it_ends_the_same(tmp_path, workers, persistent, own_generator):
    how = {"workers": workers, "persistent": persistent, "own_generator": own_generator}
    whole = Lives(tmp_path / "whole", **how).to_the_end([])
    killed = Lives(tmp_path / "killed", **how, max_lost_work=0.0)
    assert killed.to_the_end(PLACES) == whole


def test_fifty_kills_at_random_steps_of_two_thousand(tmp_path):
    epochs = 2000 // BATCHES + 1
    whole = Lives(tmp_path / "whole", epochs=epochs).to_the_end([])
    chosen = random.Random(7)
    steps = sorted(chosen.sample(range(1, epochs * BATCHES), 50))
    lives = Lives(tmp_path / "killed", epochs=epochs, max_lost_work=0.02)
    assert lives.to_the_end([(chosen.choice(["after batch", "in backward"]), step) for step in steps]) == whole
    assert lives.count == 51


def test_a_finished_training_leaves_nothing_to_go_on_from(tmp_path):
    train(tmp_path / "s", max_lost_work=0.0)
    assert list((tmp_path / "s").iterdir()) == []


def test_another_training_is_not_taken_for_this_one(tmp_path):
    """The message names the file, what differs and what to do; the objects are those of the caller."""
    model = nn.Linear(2, 2)
    used(tmp_path, model, [1, 2, 3], stop=2)
    with pytest.raises(CannotResume, match=r"model cannot be restored: (.|\n)*size mismatch"):
        guard(folder=tmp_path, model=nn.Linear(3, 2)).__enter__()
    with pytest.raises(CannotResume, match="it contains model, but guard was given model, optimizer"):
        guard(folder=tmp_path, model=model, optimizer=torch.optim.SGD(model.parameters(), 0.1)).__enter__()


def test_anything_that_can_be_iterated_over_goes_on(tmp_path):
    """A list, a range, a generator function's result made anew: what was used is skipped."""
    model = nn.Linear(1, 1)
    seen = [thing for stop in (4, 3, None) for thing in used(tmp_path, model, range(10), stop)]
    assert seen == list(range(10))


@pytest.mark.parametrize("given", [{}, {"model": 3}])
def test_what_cannot_be_kept_is_refused_at_once(given):
    with pytest.raises(TypeError, match=r"guard\(\) needs|has no state_dict"):
        guard(**given)


def test_frozen_layers_gradients_and_passing_buffers_come_back(tmp_path):
    """What a state_dict leaves out."""

    def made():
        model = nn.Linear(2, 2)
        model.register_buffer("seen", torch.zeros(1), persistent=False)
        return model

    model = made()
    model.bias.requires_grad_(False)
    model.seen += 5
    model(torch.ones(1, 2)).sum().backward()
    with contextlib.suppress(Stop), guard(folder=tmp_path, model=model) as run:
        run.snapshot()
        raise Stop
    again = made()
    with guard(folder=tmp_path, model=again):
        pass
    assert not again.bias.requires_grad
    assert again.seen.item() == 5
    assert torch.equal(again.weight.grad, model.weight.grad)
    assert again.bias.grad is None


def test_shuffled_indices_are_neither_repeated_nor_skipped(tmp_path):
    """Over a kill in the middle of an epoch, each sample is seen once."""
    loader = torch.utils.data.DataLoader(Augmented().x[:, 0].clone(), batch_size=7, shuffle=True)
    seen = [batch for stop in (3, None) for batch in used(tmp_path, nn.Linear(1, 1), loader, stop)]
    assert sorted(torch.cat(seen).tolist()) == sorted(loader.dataset.tolist())

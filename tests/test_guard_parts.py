"""All kinds of objects under `holdfast.guard`, each training killed at every one of its batches: the same end, bit for bit.

Scalers with a step that is skipped, pairs of models with an optimizer each, every way in which AdamW computes, LBFGS, schedules
that follow a score or one another.
"""

from __future__ import annotations

import copy
import hashlib
import os
import random

import pytest
import torch
from guarded import Lives
from torch import nn

from holdfast.probe.holdfast_probe.guard import guard
from holdfast.probe.holdfast_probe.snapshots import capture

BATCHES, EPOCHS = 6, 3
LAST = BATCHES * EPOCHS
SKIPPED_AT = 7


def network(width=8):
    return nn.Sequential(nn.Linear(4, width), nn.BatchNorm1d(width), nn.Tanh(), nn.Dropout(0.2), nn.Linear(width, 1))


# --- the trainings: each gives its parts, and what is done with a batch ------------------------------------------------


def scaled(dtype, **options):
    """Mixed precision. One gradient is infinite: that step is skipped, and the scale halved."""

    def made():
        model = network()
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2, **options)
        scaler = torch.amp.GradScaler("cpu", init_scale=1024.0, growth_interval=5)

        def batch(x, number):
            with torch.autocast("cpu", dtype=dtype):
                loss = (model(x) - x.sum(1, keepdim=True)).square().mean()
            if number == SKIPPED_AT:
                loss = loss * float("inf")
            scaler.scale(loss).backward()
            scaler.unscale_(optimizer)
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            before = model[0].weight.clone()
            scaler.step(optimizer)
            assert torch.equal(model[0].weight, before) == (number == SKIPPED_AT)
            scaler.update()
            optimizer.zero_grad()
            return loss

        return {"model": model, "optimizer": optimizer, "scaler": scaler}, batch

    return made


def pair():
    """A generator and a critic that take turns, each with its optimizer; one rate follows a score, the other a schedule."""
    generator, critic = nn.Sequential(nn.Linear(2, 8), nn.ReLU(), nn.Linear(8, 4)), network()
    of_generator = torch.optim.RMSprop(generator.parameters(), lr=1e-3, momentum=0.5)
    of_critic = torch.optim.Adam(critic.parameters(), lr=1e-3, betas=(0.5, 0.9), amsgrad=True)
    plateau = torch.optim.lr_scheduler.ReduceLROnPlateau(of_critic, factor=0.5, patience=1, cooldown=1)
    cycle = torch.optim.lr_scheduler.OneCycleLR(of_generator, 1e-2, total_steps=LAST)
    judge = nn.functional.binary_cross_entropy_with_logits

    def batch(x, number):
        made = generator(torch.randn(len(x), 2))
        of_critic.zero_grad()
        right, wrong = torch.ones(len(x), 1), torch.zeros(len(x), 1)
        (judge(critic(x), right) + judge(critic(made.detach()), wrong)).backward()
        of_critic.step()
        if number % 2 == 0:  # the critic is ahead; its gradients from this are cleared only with its next step
            of_generator.zero_grad()
            loss = judge(critic(made), right)
            loss.backward()
            of_generator.step()
            plateau.step(loss.item())
            cycle.step()
        return made.sum()

    parts = {"generator": generator, "critic": critic, "plateau": plateau, "cycle": cycle}
    return {**parts, "of generator": of_generator, "of critic": of_critic}, batch


def stepping(optimizer, schedule=None, lr=1e-2, **options):
    """One model and one optimizer, in groups of two rates."""

    def made():
        model = network()
        groups = [{"params": model[0].parameters(), "lr": 2e-3}, {"params": model[1:].parameters()}]
        by = optimizer(groups, lr=copy.deepcopy(lr), **options)
        rates = schedule(by) if schedule is not None else None

        def batch(x, _number):
            by.zero_grad()
            loss = (model(x) - x.sum(1, keepdim=True)).square().mean()
            loss.backward()
            by.step()
            if rates is not None:
                rates.step()
            return loss

        return {"model": model, "optimizer": by, **({"rates": rates} if rates is not None else {})}, batch

    return made


def searching():
    """LBFGS: it calls back for as many losses as it needs, and remembers where it went."""
    model = nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 1))
    optimizer = torch.optim.LBFGS(model.parameters(), lr=0.5, max_iter=4, history_size=3, line_search_fn="strong_wolfe")

    def batch(x, _number):
        def closure():
            optimizer.zero_grad()
            loss = (model(x) - x.sum(1, keepdim=True)).square().mean()
            loss.backward()
            return loss

        return optimizer.step(closure)

    return {"model": model, "optimizer": optimizer}, batch


def after_one_another(optimizer):
    rates = torch.optim.lr_scheduler
    first, then = rates.LinearLR(optimizer, 0.1, total_iters=4), rates.MultiStepLR(optimizer, [3, 6], gamma=0.3)
    return rates.SequentialLR(optimizer, [first, then], milestones=[5])


def all_at_once(optimizer):
    rates = torch.optim.lr_scheduler
    return rates.ChainedScheduler(
        [rates.CosineAnnealingWarmRestarts(optimizer, 4), rates.LambdaLR(optimizer, lambda n: 0.97**n)]
    )


TRAININGS = {
    "a scaler over bfloat16": scaled(torch.bfloat16),
    "a scaler over float16, fused": scaled(torch.float16, fused=True),
    "two models, two optimizers": pair,
    "AdamW, fused": stepping(torch.optim.AdamW, fused=True),
    "AdamW, foreach": stepping(torch.optim.AdamW, foreach=True, amsgrad=True),
    "AdamW, a rate that is a tensor": stepping(
        torch.optim.AdamW, lambda by: torch.optim.lr_scheduler.StepLR(by, 5), lr=torch.tensor(1e-2)
    ),
    "SGD, one schedule after another": stepping(torch.optim.SGD, after_one_another, momentum=0.9, nesterov=True),
    "NAdam, schedules at once": stepping(torch.optim.NAdam, all_at_once),
    "Adafactor, a cycle": stepping(
        torch.optim.Adafactor, lambda by: torch.optim.lr_scheduler.CyclicLR(by, 1e-3, 1e-2, 5, cycle_momentum=False)
    ),
    "LBFGS": searching,
}


def train(folder, *, name, at=lambda *_: None, **options):
    """One life. Every snapshot is on the disk before the next batch: a life goes on where the last one died."""
    torch.manual_seed(1)
    random.seed(2)
    torch.set_num_threads(1)
    parts, batch = TRAININGS[name]()
    loader = torch.utils.data.DataLoader(torch.linspace(-1, 1, BATCHES * 8 * 4).view(-1, 4), batch_size=8, shuffle=True)
    before = os.environ.get("DIED_AT")
    with guard(folder=folder, **parts, **options) as run:
        number = run.state.get("number", 0)
        if before is not None:
            assert run.restored == number == int(before) - 1
        for _ in run.epochs(EPOCHS):
            for x in run.batches(loader):
                number += 1
                loss = batch(x * random.uniform(0.9, 1.1), number)
                run.state.update(number=number, losses=[*run.state.get("losses", []), loss.item()])
                run._snapshots.flush()
                at("after batch", number)
    digest = hashlib.sha256()
    add(digest, {key: part.state_dict() for key, part in parts.items()})
    add(digest, [run.state, random.random(), torch.rand(1)])
    return digest.hexdigest()


def add(digest, value):
    """Every bit of a state."""
    if isinstance(value, torch.Tensor):
        digest.update(value.detach().contiguous().view(-1).view(torch.uint8).numpy().tobytes())
    elif isinstance(value, dict):
        for key, item in value.items():
            digest.update(repr(key).encode())
            add(digest, item)
    elif isinstance(value, (list, tuple)):
        for item in value:
            add(digest, item)
    else:
        digest.update(repr(value).encode())


@pytest.mark.parametrize("name", TRAININGS)
def test_killed_at_every_batch_it_ends_the_same(tmp_path, monkeypatch, name):
    monkeypatch.delenv("DIED_AT", raising=False)
    train(tmp_path / "warm", name=name)  # what torch imports late is imported before anything is forked
    whole = Lives(tmp_path / "whole", training=train, name=name).to_the_end([])
    killed = Lives(tmp_path / "killed", training=train, name=name, max_lost_work=0.0)
    for number in range(1, LAST + 1):
        assert killed.live(("after batch", number)) is None
        monkeypatch.setenv("DIED_AT", str(number))
    assert killed.live(None) == whole


def test_two_passes_at_once_are_refused(tmp_path):
    """A snapshot keeps the place in one of them. Said with the first batch, not after the first death."""
    with guard(folder=tmp_path, model=nn.Linear(1, 1)) as run:
        with pytest.raises(RuntimeError, match="one loader at a time"):
            next(zip(run.batches([1, 2]), run.batches([3, 4]), strict=True))
        assert [*run.batches([1, 2]), *run.batches([3, 4])] == [1, 2, 3, 4]


def test_a_state_that_no_memory_can_hold_does_not_end_the_training(tmp_path, monkeypatch, capsys):
    """Where the system does not say how much is free, torch does: it is told, and the training goes on."""
    monkeypatch.setattr(capture, "available_memory", lambda: None)
    model = nn.Linear(1, 1)
    model.register_buffer("huge", torch.zeros(1).expand(1 << 46))
    with guard(folder=tmp_path, model=model, max_lost_work=0.0) as run:
        assert list(run.batches(range(5))) == list(range(5))
    said = capsys.readouterr().err
    assert said.count("snapshot failed") == 1
    assert "a copy of the state needs 268435456 MiB" in said

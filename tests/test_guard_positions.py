"""Where a snapshot under `holdfast.guard` may be taken, and what a program does on its way back to that place."""

from __future__ import annotations

import contextlib
import json
import os
import random
import signal

import numpy as np
import pytest
import torch
from torch import nn

from holdfast.probe.holdfast_probe.guard import guard
from holdfast.probe.holdfast_probe.snapshots import folder_lock
from holdfast.probe.holdfast_probe.snapshots.folder_lock import InUse

EVERY_BATCH = 0.0
NEVER = 1e9


class Stop(Exception):
    """Stands for a death: what was being written is whole, and nothing else is done."""


def regression(seed=0, lr=0.1):
    torch.manual_seed(seed)
    model = nn.Linear(3, 1)
    return model, torch.optim.SGD(model.parameters(), lr=lr)


def learn(model, optimizer, x):
    optimizer.zero_grad()
    model(x).pow(2).sum().backward()
    optimizer.step()


def batches(count=4):
    return [torch.full((2, 3), float(n)) for n in range(count)]


def weights(model):
    return model.weight.flatten().tolist()


def in_two_lives(life, *args):
    """What the second life comes to: the first is stopped where `life` wants it."""
    with contextlib.suppress(Stop):
        life(*args, stop=True)
    return life(*args, stop=False)


def test_a_snapshot_that_is_asked_for_after_a_pass_repeats_none_of_it(tmp_path):
    """What the program does between its last pass and the next epoch is done once, too."""

    def life(folder, stop):
        model, optimizer = regression()
        with guard(folder=folder, model=model, optimizer=optimizer, max_lost_work=NEVER) as run:
            for epoch in run.epochs(4):
                for x in run.batches(batches()):
                    learn(model, optimizer, x)
                    run.state["made"] = run.state.get("made", 0) + 1
                    if stop and run.state["made"] == 10:
                        raise Stop
                if epoch == 1:
                    run.snapshot()
                optimizer.param_groups[0]["lr"] *= 0.5
        return weights(model), run.state["made"], optimizer.param_groups[0]["lr"]

    assert in_two_lives(life, tmp_path / "killed") == life(tmp_path / "whole", stop=False)


def test_what_the_program_does_between_two_passes_counts_once(tmp_path):
    """A schedule that is stepped between training and validation, and no run.epochs at all."""

    def life(folder, stop):
        model, optimizer = regression()
        schedule = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.5)
        parts = {"model": model, "optimizer": optimizer, "schedule": schedule}
        with guard(folder=folder, max_lost_work=NEVER, **parts) as run:
            for number in range(4):
                for x in run.batches(batches()):
                    learn(model, optimizer, x)
                    if stop and number == 2:
                        run.snapshot()
                    if stop and number == 3:
                        raise Stop
                schedule.step()
                run.state["passes"] = run.state.get("passes", 0) + 1
        return weights(model), optimizer.param_groups[0]["lr"], run.state

    assert in_two_lives(life, tmp_path / "killed") == life(tmp_path / "whole", stop=False)


def test_what_the_program_holds_of_its_own_state_stays_what_is_kept(tmp_path):
    """A list that it took from run.state before the loop is the one that is kept after it, too."""

    def life(folder, stop):
        model, _ = regression()
        with guard(folder=folder, model=model, max_lost_work=NEVER) as run:
            seen = run.state.setdefault("seen", [])
            for _ in run.epochs(1):
                for n in run.batches(range(6)):
                    seen.append(n)
                    run.snapshot()
                    if stop and n == 3:
                        raise Stop
        return run.state["seen"]

    assert in_two_lives(life, tmp_path) == list(range(6))


class Drawn(torch.utils.data.Dataset):
    def __len__(self):
        return 8

    def __getitem__(self, index):
        return index, random.random() + float(np.random.rand()) + torch.rand(1).item()  # noqa: NPY002


def two_loaders():
    for seed in (torch.manual_seed, random.seed, np.random.seed):
        seed(1)
    return [
        torch.utils.data.DataLoader(Drawn(), batch_size=2, shuffle=shuffle, num_workers=2, persistent_workers=True)
        for shuffle in (True, False)
    ]


def read_two_loaders(folder, die_after):
    """A life: what it drew."""
    model, loaders = nn.Linear(1, 1), two_loaders()
    with guard(folder=folder, model=model, max_lost_work=EVERY_BATCH) as run:
        for epoch in run.epochs(2):
            for loader in loaders:
                for index, drawn in run.batches(loader):
                    if len(run.state.setdefault("seen", [])) == die_after:
                        run._snapshots.flush()
                        os._exit(9)
                    run.state["seen"].append([epoch, index.tolist(), drawn.tolist()])
    return run.state["seen"]


def in_a_fork(life, *args):
    """What it comes to; None where it dies. Workers that it leaves behind are ended."""
    answer, told = os.pipe()
    pid = os.fork()
    if not pid:
        os.setpgid(0, 0)
        with os.fdopen(told, "w") as file:
            json.dump(life(*args), file)
        os._exit(0)
    os.close(told)
    _, status = os.waitpid(pid, 0)
    with contextlib.suppress(ProcessLookupError):
        os.killpg(pid, signal.SIGKILL)
    with os.fdopen(answer) as file:
        return json.load(file) if status == 0 else None


@pytest.fixture(scope="module")
def unguarded():
    """What the same loop draws without a guard."""
    loaders = two_loaders()
    return [
        [epoch, index.tolist(), drawn.tolist()] for epoch in range(2) for loader in loaders for index, drawn in loader
    ]


@pytest.mark.parametrize("die_after", [None, 3, 6, 10, 14])
def test_two_loaders_whose_workers_live_on_draw_on_each_by_itself(tmp_path, unguarded, die_after):
    if die_after is not None:
        assert in_a_fork(read_two_loaders, tmp_path, die_after) is None
    assert in_a_fork(read_two_loaders, tmp_path, None) == unguarded


def test_one_training_after_another_has_snapshots_of_its_own(tmp_path):
    """Folds of a cross-validation: the first is not given what the last had."""

    def life(folder, stop):
        ends = []
        for fold in range(3):
            model, optimizer = regression(seed=fold)
            with guard(folder=folder, model=model, optimizer=optimizer, max_lost_work=NEVER) as run:
                for _ in run.epochs(2):
                    for n, x in enumerate(run.batches(batches())):
                        learn(model, optimizer, x)
                        run.snapshot()
                        if stop and fold == 2 and n == 2:
                            raise Stop
            ends.append((run.restored, weights(model)))
        return ends

    def killed(stop):
        with contextlib.suppress(Stop):
            return life(tmp_path / "killed", stop=stop)
        return None

    assert in_a_fork(killed, True) is None
    ends = in_a_fork(killed, False)
    restored, ended = zip(*ends, strict=True)
    assert restored == (None, None, 2)
    assert list(ended) == [one for _, one in life(tmp_path / "whole", stop=False)]


def test_two_trainings_at_once_do_not_share_a_folder(tmp_path):
    """In one process the second has its own; in two it is told, before anything is trained."""
    model, _ = regression()

    def enter():
        folder_lock._active.clear()  # as in a process that was started by itself
        try:
            guard(folder=tmp_path, model=model).__enter__()
        except InUse as error:
            return str(error)
        return "entered"

    with guard(folder=tmp_path, model=model) as first, guard(folder=tmp_path, model=model) as second:
        assert first._store.folder != second._store.folder
        said = in_a_fork(enter)
    assert f"uses {tmp_path} for its snapshots" in said
    assert "folder=..." in said
    assert not any(tmp_path.iterdir())


def test_a_learning_rate_that_was_set_anew_is_spoken_of(tmp_path, capsys):
    """The snapshot's is used, as always; but not without a word."""
    for lr in (0.1, 0.01):
        model, optimizer = regression(lr=lr)
        with contextlib.suppress(Stop), guard(folder=tmp_path, model=model, optimizer=optimizer) as run:
            for _ in run.epochs(1):
                for _ in run.batches(batches()):
                    run.snapshot()
                    if run._position == 2:
                        raise Stop
    assert optimizer.param_groups[0]["lr"] == 0.1
    said = capsys.readouterr().err
    assert "optimizer's lr: 0.1 then, 0.01 now" in said
    assert str(tmp_path) in said


def test_a_state_that_cannot_be_told_costs_a_snapshot_and_not_the_training(tmp_path, capsys):
    model = nn.Linear(3, 1)
    optimizer = torch.optim.Adam([{"params": [model.weight]}, {"params": [model.bias]}])
    with guard(folder=tmp_path, model=model, optimizer=optimizer, max_lost_work=NEVER) as run:
        for _ in run.epochs(1):
            for n, x in enumerate(run.batches(batches())):
                learn(model, optimizer, x)
                run.snapshot()
                if n == 1:
                    del optimizer.param_groups[1]  # its state_dict raises a KeyError from now on
    assert "snapshot failed" in capsys.readouterr().err


def test_nobody_who_reads_costs_nothing(tmp_path, monkeypatch):
    """What guard says goes to stderr, which may be closed."""

    class Gone:
        def write(self, _):
            raise BrokenPipeError

    model, _ = regression()
    monkeypatch.setattr("sys.stderr", Gone())
    with guard(folder=tmp_path, model=model, max_lost_work=EVERY_BATCH) as run:
        run.state["no number"] = object()
        for _ in run.epochs(1):
            assert list(run.batches([1, 2])) == [1, 2]

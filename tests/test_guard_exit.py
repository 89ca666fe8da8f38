"""Where passes, loops and programs under `holdfast.guard` end: what is left for a life that goes on from there."""

from __future__ import annotations

import contextlib
import sys

import pytest
from test_guard_positions import EVERY_BATCH, NEVER, Stop, batches, in_two_lives, learn, regression, weights

from holdfast.probe.holdfast_probe.guard import guard
from holdfast.probe.holdfast_probe.snapshots.snapshotter import Snapshotter


def test_what_a_pass_fills_is_there_after_it(tmp_path):
    """Killed in an evaluation, after the last batch: who went on behind that would find no batch left, and divide by no count."""

    def life(folder, stop):
        model, optimizer = regression()
        means = []
        with guard(folder=folder, model=model, optimizer=optimizer, max_lost_work=EVERY_BATCH) as run:
            for epoch in run.epochs(3):
                total = count = 0
                for x in run.batches(batches()):
                    learn(model, optimizer, x)
                    total, count = total + float(x.sum()), count + 1
                means.append(total / count)
                if stop and epoch == 1:
                    run._snapshots.flush()
                    raise Stop
        return weights(model), means[-1]

    assert in_two_lives(life, tmp_path / "killed") == life(tmp_path / "whole", stop=False)


def test_one_that_is_asked_for_with_the_last_batch_comes_with_the_next_epoch(tmp_path):
    """It is not forgotten."""

    def life(folder, stop):
        model, optimizer = regression()
        with guard(folder=folder, model=model, optimizer=optimizer, max_lost_work=NEVER) as run:
            for epoch in run.epochs(3):
                if stop and epoch == 1:
                    run._snapshots.flush()
                    raise Stop
                for number, x in enumerate(run.batches(batches())):
                    learn(model, optimizer, x)
                    if number == 3:
                        run.snapshot()
        return run.restored

    assert in_two_lives(life, tmp_path) == 4


def test_passes_of_one_batch_are_kept_too(tmp_path):
    """Without epochs there is no other place."""

    def life(folder, stop):
        model, optimizer = regression()
        with guard(folder=folder, model=model, optimizer=optimizer, max_lost_work=NEVER) as run:
            while run.state.setdefault("made", 0) < 6:
                for x in run.batches(batches(2)[1:]):
                    learn(model, optimizer, x)
                    run.state["made"] += 1
                    run.snapshot()
                    if stop and run.state["made"] == 4:
                        run._snapshots.flush()
                        raise Stop
        return weights(model), run.restored

    assert in_two_lives(life, tmp_path / "killed") == (life(tmp_path / "whole", stop=False)[0], 3)


@pytest.mark.parametrize(("max_lost_work", "restored"), [(None, 3), (EVERY_BATCH, 6)])
def test_a_second_pass_of_an_epoch_can_wait(tmp_path, monkeypatch, max_lost_work, restored):
    """To go on in it, the first would be passed over with all that the program gathers in it: so only where else too much would be lost."""
    monkeypatch.setattr(Snapshotter, "is_due", lambda *_: True)

    def life(folder, stop):
        model, optimizer = regression()
        with guard(folder=folder, model=model, optimizer=optimizer, max_lost_work=max_lost_work) as run:
            for _ in run.epochs(1):
                for call in range(2):
                    for number, x in enumerate(run.batches(batches())):
                        learn(model, optimizer, x)
                        if stop and (call, number) == (1, 2):
                            run._snapshots.flush()
                            raise Stop
        return run.restored

    assert in_two_lives(life, tmp_path) == restored


def test_a_loop_over_epochs_that_was_over_stays_over(tmp_path):
    """A warm-up and then the training: killed in the second loop, it goes on in the second."""

    def life(folder, stop):
        model, optimizer = regression()
        made = []
        with guard(folder=folder, model=model, optimizer=optimizer, max_lost_work=NEVER) as run:
            for loop, scale in enumerate((1.0, 0.5)):
                for epoch in run.epochs(2):
                    for number, x in enumerate(run.batches(batches())):
                        learn(model, optimizer, x * scale)
                        made.append(loop)
                        run.snapshot()
                        if stop and (loop, epoch, number) == (1, 1, 2):
                            run._snapshots.flush()
                            raise Stop
        return weights(model), set(made[-2:]), len(made)

    assert in_two_lives(life, tmp_path / "killed") == (*life(tmp_path / "whole", stop=False)[:2], 2)


@pytest.mark.parametrize("leaves", ["return", "exit"])
def test_who_asks_for_a_snapshot_and_leaves_goes_on_from_it(tmp_path, leaves):
    """As is done where a cluster says that its time is over: the program ends well, and is not at its end."""

    def life(folder, stop):
        model, optimizer = regression()
        with guard(folder=folder, model=model, optimizer=optimizer, max_lost_work=NEVER) as run:
            for epoch in run.epochs(3):
                for number, x in enumerate(run.batches(batches())):
                    learn(model, optimizer, x)
                    if stop and (epoch, number) == (1, 1):
                        run.snapshot()
                        if leaves == "exit":
                            sys.exit(0)
                        return None
        return weights(model), run.restored

    with contextlib.suppress(SystemExit):
        life(tmp_path / "left", stop=True)
    assert life(tmp_path / "left", stop=False) == (life(tmp_path / "whole", stop=False)[0], 6)


def test_who_stops_early_is_at_its_end(tmp_path):
    """Nothing was asked for: a `break` is how a training ends that is good enough."""
    model, optimizer = regression()
    with guard(folder=tmp_path, model=model, optimizer=optimizer, max_lost_work=EVERY_BATCH) as run:
        for x in run.batches(batches()):
            learn(model, optimizer, x)
            break
    with guard(folder=tmp_path, model=model, optimizer=optimizer) as run:
        assert run.restored is None

"""A YOLO11n training that is killed anywhere, any number of times, ends bit for bit as one that was not."""

from __future__ import annotations

import importlib.util
import random

import pytest
from squares import make_squares
from yolo_attempts import PLACES, Lives, import_ultralytics

pytestmark = pytest.mark.skipif(importlib.util.find_spec("ultralytics") is None, reason="Ultralytics is not installed")
IMAGES, BATCHES, EPOCHS = 22, 6, 4


@pytest.fixture(scope="module", autouse=True)
def loaded(tmp_path_factory):
    """Once, before all forks."""
    return import_ultralytics(tmp_path_factory.mktemp("config"))


@pytest.fixture(scope="module")
def bare(tmp_path_factory):
    """What comes out of Ultralytics as it is; each case once."""
    known = {}

    def result(**options):
        key = tuple(sorted(options.items()))
        if key not in known:
            folder = make_squares(tmp_path_factory.mktemp("bare"), IMAGES)
            known[key] = Lives(folder, bare=True, **options).to_the_end()
        return known[key]

    return result


def lives(folder, **options):
    return Lives(make_squares(folder, IMAGES), **options)


@pytest.mark.parametrize("kills", [8, pytest.param(20, marks=pytest.mark.long)])
def test_kills_at_random_places(tmp_path, bare, kills):
    """With a snapshot between any two batches: accumulation half-way, warm-up, mosaic open and closed, mixup."""
    choice = random.Random(7)
    steps = sorted(choice.sample(range(1, BATCHES * EPOCHS), kills))
    deaths = [(choice.choice(("after a batch", "in a backward")), step) for step in steps]
    training = lives(tmp_path)
    assert training.to_the_end(deaths) == bare()
    done = [step if place == "in a backward" else step - 1 for place, step in deaths]
    assert training.restored == done
    assert all(training.exact)


@pytest.mark.parametrize("workers", [pytest.param(0, marks=pytest.mark.long), 2])
def test_every_named_place(tmp_path, bare, workers):
    """Also in the life that goes on, before its first batch, and in the thread that writes a snapshot."""
    deaths = [
        ("in a snapshot's write", 3),
        ("in a snapshot's copy", 2),
        ("in a backward", 5),
        ("before a validation", BATCHES),
        ("in a validation", BATCHES),
        ("an epoch's begin", 0),  # of the life that goes on with the validation
        ("after a save", BATCHES),
        ("an epoch's end", BATCHES),
        ("an epoch's begin", 2 * BATCHES),
        ("after a batch", 2 * BATCHES + 3),
        ("in a validation", 3 * BATCHES),
        ("in a snapshot's write", 5),
        ("an epoch's end", 4 * BATCHES),
    ]
    assert {place for place, _ in deaths} >= set(PLACES.values())
    training = lives(tmp_path, workers=workers)
    assert training.to_the_end(deaths) == bare(workers=workers)
    assert len(training.restored) >= len(deaths) - 1
    assert all(training.exact)


def test_work_that_is_done_again_comes_out_the_same(tmp_path, bare):
    """Fewer snapshots than batches, SGD, and another schedule."""
    settings = {"optimizer": "SGD", "cos_lr": True, "workers": 2}
    training = lives(tmp_path, most_lost=0.4, **settings)
    assert training.to_the_end([("after a batch", 11), ("after a batch", 15), ("in a validation", 24)]) == bare(
        **settings
    )


def test_an_epoch_of_full_batches(tmp_path):
    """Its sampler draws once more after the last: killed there, that draw is made too."""
    images = 8
    whole = Lives(make_squares(tmp_path / "whole", images), bare=True).to_the_end()
    training = Lives(make_squares(tmp_path / "killed", images))
    assert training.to_the_end([("in a validation", 2), ("in a backward", 4)]) == whole


def test_torn_files_are_survived(tmp_path, bare):
    """Its own last.pt, and the newest snapshot."""
    training = lives(tmp_path)
    assert training.live(("after a batch", 8)) is None
    last = tmp_path / "runs" / "life" / "weights" / "last.pt"
    last.write_bytes(last.read_bytes()[:1000])
    newest = max((tmp_path / "snapshots").glob("*.snapshot"))
    newest.write_bytes(newest.read_bytes()[:-100])
    assert training.to_the_end() == bare()
    assert training.replayed == [[1, None]]
    assert training.restored == [int(newest.name.partition(".")[0]) - 1]


def test_settings_may_change(tmp_path, bare):
    """What Ultralytics ignores when it goes on is heard: the work done is kept, and it is said that it is not the same."""
    training = lives(tmp_path)
    assert training.live(("after a batch", 9)) is None
    assert training.live(("after a batch", 5), batch=8, lr0=0.002, mosaic=0.0) is None
    out = training.live(None, batch=8, optimizer="SGD", mosaic=0.0)
    assert out is not None
    assert training.exact == [False, False]
    assert out["weights"] != bare()["weights"]


def test_another_training_does_not_go_on_from_it(tmp_path):
    training = lives(tmp_path)
    assert training.live(("after a batch", 9)) is None
    assert training.live(None, model="yolov8n.yaml", epochs=1) is not None
    assert training.restored == []


@pytest.mark.long
def test_going_back_after_a_nan_is_the_same(tmp_path, bare):
    """Ultralytics then reloads last.pt. Killed after a later save and before the NaN is met again, it must find the older one."""
    whole = Lives(make_squares(tmp_path / "whole", IMAGES), bare=True, nan_at=15).to_the_end()
    assert whole["weights"] != bare()["weights"]
    training = Lives(make_squares(tmp_path / "killed", IMAGES), nan_at=15)
    assert training.live(("after a batch", 14)) is None
    later = Lives(training.folder, nan_at=15, most_lost=3600.0)
    assert later.live(("in a backward", 20)) is None  # the NaN was met, and its epoch was made again and saved
    assert training.to_the_end() == whole
    assert (later.restored, training.restored) == ([13], [13])

"""Full collections of Python's collector wait while a training is imported, and come back as they were."""

import gc
import time
import weakref

import pytest
from probe_harness import run

from holdfast.child.holdfast_child import collection
from holdfast.child.holdfast_child.collection import NEVER, Start

KEPT = 120_000
"""So many new objects have Python look through all of them several times over."""
OF_A_TRAINING = """
    import gc
    SET_UP
    before = gc.get_threshold()
    import torch
    print("starting", gc.get_threshold() == before, gc.get_threshold()[:2] == before[:2])
    kept = [[] for _ in range(120_000)]
    full = gc.get_stats()[2]["collections"]
    print("collected", full)
    model = torch.nn.Linear(2, 1)
    model(torch.ones(1, 2)).sum().backward()
    print("training", gc.get_threshold() == before, gc.get_freeze_count() > 10_000)
    more = [[] for _ in range(1500)]
    print("collected", gc.get_stats()[2]["collections"] - full)
"""


class InACycle:
    def __init__(self):
        self.itself = self


@pytest.fixture(autouse=True)
def as_python_starts():
    """With Python's own settings, and what other tests left behind looked through."""
    before, callbacks = gc.get_threshold(), list(gc.callbacks)
    gc.collect()
    gc.set_threshold(700, 10, 10)
    yield
    gc.callbacks[:] = callbacks
    gc.unfreeze()
    gc.enable()
    gc.set_threshold(*before)


def full_collections():
    return gc.get_stats()[2]["collections"]


def test_only_full_collections_wait():
    """Young garbage goes as ever: a start that reads much data in circles keeps none of it."""
    start, before = Start(), full_collections()
    start.begins()
    young = weakref.ref(InACycle())
    kept = [[] for _ in range(KEPT)]
    assert len(kept) == KEPT
    assert young() is None
    assert full_collections() == before
    start.ended()
    assert gc.get_threshold() == (700, 10, 10)


def test_without_a_start_they_do_not_wait():
    """What the test above would show if nothing was put off."""
    before = full_collections()
    kept = [[] for _ in range(10 * KEPT)]
    assert len(kept) == 10 * KEPT
    assert full_collections() > before


def test_none_is_owed_when_the_training_has_begun():
    """What was put off is not made up for at the first batch; what is new is counted from there."""
    start, before = Start(), full_collections()
    start.begins()
    kept = [[[]] for _ in range(KEPT)]
    start.ended()
    more = [[] for _ in range(2000)]
    assert (len(kept), len(more)) == (KEPT, 2000)
    assert full_collections() == before


def test_garbage_of_the_start_is_still_found():
    """Nothing stays frozen."""
    start = Start()
    start.begins()
    old = InACycle()
    gone = weakref.ref(old)
    start.ended()
    del old
    gc.collect()
    assert gone() is None


def test_thresholds_that_the_program_set_meanwhile_stay():
    """It knows what it wants of the collector."""
    start = Start()
    start.begins()
    gc.set_threshold(5000, 20, 30)
    start.ended()
    assert gc.get_threshold() == (5000, 20, 30)


def test_what_the_program_has_frozen_stays_frozen():
    """As is done before processes are forked, so that they share memory."""
    start = Start()
    start.begins()
    gc.freeze()
    start.ended()
    assert gc.get_freeze_count() > 1000
    assert gc.get_threshold() == (700, 10, 10)


def test_a_first_threshold_of_the_programs_own_stays():
    """`gc.set_threshold(n)` leaves the others as they are; ours is taken back all the same."""
    start = Start()
    start.begins()
    gc.set_threshold(5000)
    start.ended()
    assert gc.get_threshold() == (5000, 10, 10)


def test_a_collector_without_full_collections_is_left_alone():
    """Somebody has switched them off."""
    gc.set_threshold(700, 10, 0)
    start = Start()
    start.begins()
    assert gc.get_threshold() == (700, 10, 0)
    start.ended()
    assert gc.get_threshold() == (700, 10, 0)


def test_a_start_that_takes_too_long_is_none(monkeypatch):
    """A program that prepares data for hours before it trains collects as ever after a minute, without being asked."""
    start, now = Start(), time.monotonic()
    start.begins()
    assert gc.get_threshold()[2] == NEVER
    monkeypatch.setattr(collection.time, "monotonic", lambda: now + collection.STARTING_SECONDS + 5)
    kept = [[] for _ in range(2000)]
    assert len(kept) == 2000
    assert gc.get_threshold() == (700, 10, 10)
    assert not [one for one in gc.callbacks if getattr(one, "__self__", None) is start]


@pytest.mark.parametrize(
    ("set_up", "variables", "starting"),
    [
        ("pass", {}, "False True"),
        ("gc.set_threshold(1000, 15, 20)", {}, "False True"),
        ("pass", {"HOLDFAST_OBSERVE_ONLY": "1"}, "True True"),
    ],
    ids=["as it is", "own settings", "observe only"],
)
def test_in_a_real_training(tmp_path, set_up, variables, starting):
    """Put off from the import of torch to the first backward; never where nothing may be changed."""
    probed = run(tmp_path, OF_A_TRAINING.replace("SET_UP", set_up), **variables)
    lines = probed.out.splitlines()
    assert lines[0] == f"starting {starting}"
    assert lines[2] == "training True False"
    waits = not variables
    assert (lines[1] == "collected 0") == waits, lines
    if waits:
        assert lines[3] == "collected 0"


def test_a_forked_process_collects_as_ever(tmp_path):
    """It was forked before the first batch, and may never train."""
    probed = run(
        tmp_path,
        """
        import gc, os
        before = gc.get_threshold()
        import torch
        if os.fork() == 0:
            print(gc.get_threshold() == before, flush=True)
            os._exit(0)
        os.wait()
        print(gc.get_threshold() == before)
        """,
    )
    assert probed.out.split() == ["True", "False"]

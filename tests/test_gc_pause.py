"""Full collections of Python's collector wait while a training is imported; nothing that a program can see of it is changed."""

import gc
import time
import weakref

import pytest
from probe_harness import run

from holdfast.probe.holdfast_probe import gc_pause
from holdfast.probe.holdfast_probe.gc_pause import GcPause

KEPT = 120_000
"""So many new objects have Python look through all of them several times over."""
OF_A_TRAINING = """
    import gc
    before = gc.get_threshold()
    import torch
    kept = [[] for _ in range(120_000)]
    full = gc.get_stats()[2]["collections"]
    print("starting", gc.get_threshold() == before, full)
    model = torch.nn.Linear(2, 1)
    model(torch.ones(1, 2)).sum().backward()
    more = [[] for _ in range(1500)]
    print("training", gc.get_threshold() == before, gc.get_freeze_count() > 10_000, gc.get_stats()[2]["collections"] - full)
    print("callbacks", len(gc.callbacks))
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
    gc.set_threshold(*before)


@pytest.fixture
def start():
    made = GcPause()
    made.begin()
    yield made
    made.end()


def full_collections():
    return gc.get_stats()[2]["collections"]


def make(count=KEPT):
    """Objects that stay, so that the collector has something to look through."""
    return [[] for _ in range(count)]


def test_only_full_collections_wait(start):
    """Young garbage goes as ever: a start that reads much data in circles keeps none of it."""
    before = full_collections()
    young = weakref.ref(InACycle())
    kept = make()
    assert len(kept) == KEPT
    assert young() is None
    assert full_collections() == before
    assert gc.get_threshold() == (700, 10, 10)


def test_without_a_start_they_do_not_wait():
    """What the test above would show if nothing was put off."""
    before = full_collections()
    assert len(make(10 * KEPT)) == 10 * KEPT
    assert full_collections() > before


def test_none_is_owed_when_the_training_has_begun(start):
    """What was put off is not made up for at the first batch; later ones come as ever."""
    before = full_collections()
    kept = make()
    start.end()
    more = make(2000)
    assert (len(kept), len(more)) == (KEPT, 2000)
    assert full_collections() == before
    assert len(make(10 * KEPT)) == 10 * KEPT
    assert full_collections() > before


def test_garbage_of_the_start_is_still_found(start):
    """Nothing stays frozen."""
    old = InACycle()
    gone = weakref.ref(old)
    kept = make()
    start.end()
    del old
    gc.collect()
    assert (gone(), len(kept)) == (None, KEPT)


def test_what_the_program_sets_up_is_its_own(start):
    """Thresholds that it reads, doubles or puts back later are those that it would have found."""
    first, second, full = gc.get_threshold()
    gc.set_threshold(first * 2, second * 2, full * 2)
    start.end()
    assert gc.get_threshold() == (1400, 20, 20)


def test_what_the_program_has_frozen_stays_frozen(start):
    """As is done before processes are forked, so that they share memory."""
    gc.freeze()
    kept = make()
    assert gc.get_freeze_count() > 1000
    assert len(kept) == KEPT


def test_callbacks_of_the_programs_own_hear_both_ends(start, monkeypatch):
    """Also of the collection at which the start turns out to be none."""
    heard = []
    gc.callbacks.append(lambda phase, _: heard.append(phase))
    monkeypatch.setattr(gc_pause.time, "monotonic", lambda: 1e18)
    assert len(make()) == KEPT
    assert heard[::2] == ["start"] * (len(heard) // 2)
    assert heard[1::2] == ["stop"] * (len(heard) // 2)


@pytest.mark.parametrize(
    ("what", "value"),
    [("MAX_START_SECONDS", -1.0), ("MAX_YOUNG_COLLECTIONS", 2), ("MAX_MEMORY_BYTES", -1)],
    ids=["too long", "too much made", "too much memory"],
)
def test_what_does_more_than_start_collects_as_ever(monkeypatch, what, value):
    """A program that prepares data for hours, or has gone through gigabytes, before it trains."""
    monkeypatch.setattr(gc_pause, what, value)
    start, before = GcPause(), full_collections()
    start.begin()
    assert len(make(10 * KEPT)) == 10 * KEPT
    assert full_collections() > before
    start.end()


def test_time_is_looked_at(monkeypatch):
    """And not only when it begins."""
    start, now = GcPause(), time.monotonic()
    start.begin()
    kept, before = make(), full_collections()
    monkeypatch.setattr(gc_pause.time, "monotonic", lambda: now + gc_pause.MAX_START_SECONDS + 5)
    assert len(make(10 * KEPT)) + len(kept) == 11 * KEPT
    assert full_collections() > before
    start.end()


@pytest.mark.parametrize("observes", [False, True], ids=["as it is", "observe only"])
def test_in_a_real_training(tmp_path, observes):
    """Put off from the import of torch to the first backward; never where nothing may be changed."""
    probed = run(tmp_path, OF_A_TRAINING, **({"HOLDFAST_OBSERVE_ONLY": "1"} if observes else {}))
    starting, training, callbacks = probed.out.splitlines()
    assert starting.startswith("starting True ")
    assert (starting == "starting True 0") is not observes
    assert training.startswith("training True False ")
    if not observes:
        assert training == "training True False 0"
    assert callbacks == "callbacks 0"


def test_a_forked_process_collects_as_ever(tmp_path):
    """It was forked before the first batch, and may never train."""
    probed = run(
        tmp_path,
        """
        import gc, os
        import torch
        if os.fork() == 0:
            print(len(gc.callbacks), flush=True)
            os._exit(0)
        os.wait()
        print(len(gc.callbacks))
        """,
    )
    assert probed.out.split() == ["0", "1"]

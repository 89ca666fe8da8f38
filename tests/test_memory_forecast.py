"""The forecast of the step that kills is within a tenth once half of the memory is used, and nothing is foretold of caches.

A dozen lives of bench/forecast, played through the engine; the bench has hundreds of them.
"""

from __future__ import annotations

import math
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from holdfast.diagnosis.engine import Engine
from holdfast.diagnosis.memory_forecast import leak_of
from holdfast.diagnosis.rules import by_id
from holdfast.diagnosis.run_state import RunState
from holdfast.schema import events
from holdfast.testing.histories import entries

sys.path.insert(0, str(Path(__file__).parents[1] / "bench" / "forecast"))
from lives import MemoryHistory

LIFE = MemoryHistory("", epoch_s=30.0, steps=60, noise=0.05, tooth=0.3, planned=1000)
VALIDATED = replace(LIFE, spike=1.8, validation_s=8.0)
LEAKS = {
    "with every step": replace(LIFE, leak=0.7),
    "with every step, and validations that take much": replace(VALIDATED, leak=0.5),
    "a jump each epoch": replace(LIFE, jump=0.8, uneven=0.1, seed=3),
    "a jump each epoch, and validations that take much": replace(VALIDATED, jump=0.6, uneven=0.1),
    "after caches have filled": replace(LIFE, leak=0.35, cache=lambda x: 2.5 * min(1.0, x / 2.0)),
    "in the driver of a Mac": replace(VALIDATED, leak=0.6, mps=True),
    "validated every fourth epoch": replace(VALIDATED, leak=0.25, validated_every=4),
}
CACHES = {
    "in one epoch": lambda x: 8.0 * min(1.0, x),
    "in three epochs": lambda x: 8.0 * min(1.0, x / 3.0),
    "in four even steps": lambda x: 2.0 * min(4, int(x)),
    "ever slower": lambda x: 8.0 * (1.0 - math.exp(-x / 4.0)),
    "in ever smaller steps": lambda x: 8.0 * (1.0 - 0.7 ** int(x)),
    "as an allocator's growth that dies away": lambda x: 1.5 * math.log(1.0 + 8.0 * x),
}


def lived(life, epochs):
    """The image after so many epochs, and how often the rule warned."""
    state = RunState()
    engine = Engine(state, [by_id()["memory-leak"]])
    found = [finding for entry in entries(life.events(epochs)) for finding in engine.take(entry)]
    return state, [finding.message for finding in found if finding.severity != "note"]


@pytest.mark.parametrize("life", LEAKS.values(), ids=LEAKS)
def test_kill_is_foretold_once_half_of_the_memory_is_used(life):
    killed_at = life.killed_at()
    state, _ = lived(life, life.half_used_epoch())
    leak = leak_of(state)
    assert leak.settled
    assert leak.forecast.at == pytest.approx(killed_at, rel=0.1)
    assert leak.forecast.earliest <= killed_at <= leak.forecast.latest
    assert lived(life, life.half_used_epoch() + 0.3)[1]


@pytest.mark.parametrize("cache", CACHES.values(), ids=CACHES)
def test_cache_that_fills_and_stops_is_no_leak(cache):
    state = RunState()
    engine = Engine(state, [by_id()["memory-leak"]])
    for entry in entries(replace(VALIDATED, cache=cache).events(25.0)):
        assert [finding.message for finding in engine.take(entry) if finding.severity != "note"] == []
        if isinstance(entry.event, events.Sample) and state.attempt.memory.count % 10 == 0:
            leak = leak_of(state)
            sure = leak is not None and leak.forecast is not None and leak.settled
            assert not sure or leak.forecast.at > 1000 * LIFE.steps


def test_forecast_is_gone_once_it_stops():
    """A growth that goes on evenly for ten epochs is taken for a leak, and no longer when it has stopped."""
    life = replace(LIFE, cache=lambda x: 0.7 * min(10.0, x))
    before, after = leak_of(lived(life, 9.5)[0]), leak_of(lived(life, 20.0)[0])
    assert before.settled
    assert before.forecast is not None
    assert after is None or after.forecast is None

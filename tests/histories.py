"""Histories played through the judge."""

from __future__ import annotations

from holdfast.diagnosis.engine import Engine
from holdfast.diagnosis.run_state import RunState
from holdfast.schema import events
from holdfast.storage.journal import Entry
from holdfast.testing.histories import entries


def seen(*parts, rules=None):
    """The image after these events and all that the rules make of them."""
    state = RunState()
    engine = Engine(state, rules)
    for entry in entries([event for part in parts for event in part]):
        for finding in engine.take(entry):
            state.fold(Entry(events.FindingMade(at=0.0, finding=finding), 1))
    return state

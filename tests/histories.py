"""Histories played through the judge."""

from __future__ import annotations

from holdfast.judge.engine import Engine
from holdfast.judge.history import entries
from holdfast.judge.picture import Picture
from holdfast.record.journal import Entry
from holdfast.words import events


def seen(*parts, rules=None):
    """The picture after these events and all that the rules make of them."""
    picture = Picture()
    engine = Engine(picture, rules)
    for entry in entries([event for part in parts for event in part]):
        for finding in engine.take(entry):
            picture.fold(Entry(events.FindingMade(at=0.0, finding=finding), 1))
    return picture

"""Snapshots: the newest, what they cost, and what became of those that were to be gone on from."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from holdfast.schema import events

KEPT = 16


class Snapshots:
    def __init__(self) -> None:
        self.newest: events.Snapshot | None = None
        self.known: deque[events.Snapshot] = deque(maxlen=KEPT)
        self.count = 0
        self.stall = 0.0
        """Seconds that the training waited for them, all together."""
        self.failed: events.SnapshotFailed | None = None
        """The newest that could not be written, where none was written after it."""
        self.torn: deque[events.SnapshotCorrupt] = deque(maxlen=KEPT)
        self.restored: events.Restored | None = None
        self.replayed: events.Replayed | None = None

    def fold(self, event: events.Snapshot) -> None:
        self.newest = event
        self.known.append(event)
        self.count += 1
        self.stall += event.stall
        self.failed = None

    def fold_failed(self, event: events.SnapshotFailed) -> None:
        self.failed = event

    def fold_torn(self, event: events.SnapshotCorrupt) -> None:
        self.torn.append(event)

    def fold_replayed(self, event: events.Replayed) -> None:
        self.replayed = event

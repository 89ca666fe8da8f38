"""Snapshots: the newest, what they cost, and the results of restoring them."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from holdfast.schema import events

MAX_KEPT = 16


class Snapshots:
    def __init__(self) -> None:
        self.newest: events.Snapshot | None = None
        self.known: deque[events.Snapshot] = deque(maxlen=MAX_KEPT)
        self.count = 0
        self.stall = 0.0
        """Total seconds that the training waited for snapshots."""
        self.failed: events.SnapshotFailed | None = None
        """The newest snapshot that could not be written, if none was written after it."""
        self.corrupt: deque[events.SnapshotCorrupt] = deque(maxlen=MAX_KEPT)
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

    def fold_corrupt(self, event: events.SnapshotCorrupt) -> None:
        self.corrupt.append(event)

    def fold_replayed(self, event: events.Replayed) -> None:
        self.replayed = event

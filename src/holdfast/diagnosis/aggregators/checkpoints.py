"""Saved checkpoints and snapshots: what they contain, what they cost, and the results of restoring them."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from holdfast.schema import events

MAX_PATHS = 256
MAX_SNAPSHOTS = 16
MIN_STEPS_AFTER = 20
"""After the final save of a training, there are fewer steps than this."""


class CheckpointSaves:
    def __init__(self) -> None:
        self.by_path: dict[str, events.Saved] = {}
        """The newest save of each path, in the order of saving."""
        self.newest: events.Saved | None = None
        """The newest save whose weights were recognised and compared."""
        self.count = 0
        self.first_step: int | None = None
        """The step of the first save."""
        self.last_step = 0
        self.seconds = 0.0

    def are_saved_during_training(self, step: int) -> bool:
        """Return whether, by this step, it is clear that files are saved during training and not only at its end."""
        if self.first_step is None:
            return False
        return self.last_step > self.first_step or step - self.last_step >= max(self.last_step, MIN_STEPS_AFTER)

    def fold(self, event: events.Saved) -> None:
        self.count += 1
        self.seconds += event.seconds
        if event.compared:
            self.newest = event
        if event.path is not None:
            self.first_step = event.step if self.first_step is None else self.first_step
            self.last_step = max(self.last_step, event.step)
            self.by_path.pop(event.path, None)
            self.by_path[event.path] = event
            if len(self.by_path) > MAX_PATHS:
                del self.by_path[next(iter(self.by_path))]


class Snapshots:
    def __init__(self) -> None:
        self.newest: events.Snapshot | None = None
        self.known: deque[events.Snapshot] = deque(maxlen=MAX_SNAPSHOTS)
        self.count = 0
        self.stall = 0.0
        """Total seconds that the training waited for snapshots."""
        self.failed: events.SnapshotFailed | None = None
        """The newest snapshot that could not be written, if none was written after it."""
        self.corrupt: deque[events.SnapshotCorrupt] = deque(maxlen=MAX_SNAPSHOTS)
        self.restored: events.Restored | None = None
        self.replayed: events.Replayed | None = None

    def fold(self, event: events.Snapshot) -> None:
        self.newest = event
        self.known.append(event)
        self.count += 1
        self.stall += event.stall
        self.failed = None

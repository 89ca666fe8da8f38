"""What was saved, and whether it was what was live."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from holdfast.words import events

KEPT = 256


class Saves:
    def __init__(self) -> None:
        self.by_path: dict[str, events.Saved] = {}
        """The newest of each path, in the order of saving."""
        self.newest: events.Saved | None = None
        """The newest in which weights were recognised and compared."""
        self.count = 0
        self.seconds = 0.0

    def fold(self, event: events.Saved) -> None:
        self.count += 1
        self.seconds += event.seconds
        if event.compared:
            self.newest = event
        if event.path is not None:
            self.by_path.pop(event.path, None)
            self.by_path[event.path] = event
            if len(self.by_path) > KEPT:
                del self.by_path[next(iter(self.by_path))]

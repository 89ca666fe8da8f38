"""What was saved, and whether it was what was live."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from holdfast.schema import events

KEPT = 256
A_WHILE = 20
"""Steps after a save that no ending makes."""


class CheckpointSaves:
    def __init__(self) -> None:
        self.by_path: dict[str, events.Saved] = {}
        """The newest of each path, in the order of saving."""
        self.newest: events.Saved | None = None
        """The newest in which weights were recognised and compared."""
        self.count = 0
        self.first_step: int | None = None
        """At which a file was first saved."""
        self.last_step = 0
        self.seconds = 0.0

    def are_on_the_way(self, step: int) -> bool:
        """By a step it has become plain that files are saved while it trains, and not only what came of it at the end."""
        if self.first_step is None:
            return False
        return self.last_step > self.first_step or step - self.last_step >= max(self.last_step, A_WHILE)

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
            if len(self.by_path) > KEPT:
                del self.by_path[next(iter(self.by_path))]

"""Weights: which move, which are used, which an optimizer holds, and whether replicas agree."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from holdfast.words import events

KEPT_NAMES = 512
KEPT_STEPS = 64


@dataclass
class Stuck:
    """A tensor with rows that did not move although their gradient says so."""

    times: int
    first_step: int
    last: events.StuckTensor


class Weights:
    def __init__(self) -> None:
        self.movement: events.Movement | None = None
        """The newest that looked at anything: at the very end the weights may be gone already."""
        self.looks = 0
        self.most_moved = 0
        self.stuck: dict[str, Stuck] = {}
        """By name; a tensor that moved after all is taken out."""
        self.graph: events.Graph | None = None
        self.checksums: dict[int, dict[int, str]] = {}
        """Step -> rank -> checksum, of the newest steps."""
        self.compared = 0
        """Steps at which all ranks were compared."""
        self.diverged: list[int] = []
        """The steps at which they were not equal."""

    def fold_movement(self, event: events.Movement) -> None:
        if not event.checked:
            return
        self.movement = event
        self.looks += 1
        self.most_moved = max(self.most_moved, event.moved)
        now = {tensor.name: tensor for tensor in event.stuck}
        for name in [name for name in self.stuck if name not in now]:
            del self.stuck[name]
        for name, tensor in now.items():
            known = self.stuck.get(name)
            if known is not None:
                known.times += 1
                known.last = tensor
            elif len(self.stuck) < KEPT_NAMES:
                self.stuck[name] = Stuck(1, event.step, tensor)

    def fold_checksum(self, event: events.Checksum, world_size: int) -> None:
        at_step = self.checksums.setdefault(event.step, {})
        at_step[event.rank] = event.value
        if len(at_step) == world_size:
            self.compared += 1
            if len(set(at_step.values())) > 1 and len(self.diverged) < KEPT_STEPS:
                self.diverged.append(event.step)
        while len(self.checksums) > KEPT_STEPS:
            del self.checksums[min(self.checksums)]

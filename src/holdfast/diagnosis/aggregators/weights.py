"""Weights: which move, which are used, which an optimizer holds, and whether replicas agree."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING

from holdfast.diagnosis.aggregators.running_stats import Streak

if TYPE_CHECKING:
    from holdfast.schema import events

KEPT_NAMES = 512
KEPT_STEPS = 64
KEPT_FROZEN = 16
HAD_TO_MOVE = 1.0
"""An expected update of so many units in the weight's last place leaves no excuse for staying."""


@dataclass
class Stuck:
    """A tensor with rows that did not move although their gradient says so."""

    times: int
    """How often in a row, in steps that followed each other, it was seen to stay."""
    first_step: int
    last: events.StuckTensor

    @property
    def had_to_move(self) -> bool:
        return self.last.update_ulps is not None and self.last.update_ulps >= HAD_TO_MOVE

    @property
    def wholly(self) -> bool:
        """No row with a gradient moved."""
        return self.last.stuck >= self.last.with_gradient


class Weights:
    def __init__(self) -> None:
        self.weight_updates: events.WeightUpdates | None = None
        """The newest that looked at anything: at the very end the weights may be gone already."""
        self.samples = 0
        self.first_sample: int | None = None
        self.most_moved = 0
        self.stuck: dict[str, Stuck] = {}
        """By name; a tensor that moved after all is taken out."""
        self.had_to_move = 0
        """How many of those had to."""
        self.no_gradient: list[str] = []
        """Tensors that had none when last looked at, a few by name."""
        self.zero_input: dict[str, Streak] = {}
        """Weights of layers that were given nothing but zeros, at every look so far."""
        self.graph: events.Graph | None = None
        self.frozen: deque[events.Frozen] = deque(maxlen=KEPT_FROZEN)
        """What became of frozen weights, the newest last."""
        self.checksums: dict[int, dict[int, str]] = {}
        """Step -> rank -> checksum, of the newest steps."""
        self.compared = 0
        """Steps at which all ranks were compared."""
        self.equal_at: int | None = None
        """The newest step at which they were equal."""
        self.diverged: list[int] = []
        """The steps at which they were not equal, since they last were."""

    def fold_movement(self, event: events.WeightUpdates) -> None:
        if not event.checked:
            return
        self.weight_updates = event
        self.samples += 1
        self.first_sample = event.step if self.first_sample is None else self.first_sample
        self.most_moved = max(self.most_moved, event.moved)
        self.no_gradient = event.no_gradient
        self._fold_zero_input(event)
        for name in event.moving_again:
            self.stuck.pop(name, None)
        for tensor in event.stuck:
            known = self.stuck.get(tensor.name)
            if known is not None:
                known.times = max(known.times, tensor.times)
                known.last = tensor
            elif len(self.stuck) < KEPT_NAMES:
                self.stuck[tensor.name] = Stuck(tensor.times, event.step, tensor)
        self.had_to_move = sum(stuck.had_to_move for stuck in self.stuck.values())

    def _fold_zero_input(self, event: events.WeightUpdates) -> None:
        if self.samples == 1:
            self.zero_input = {name: Streak() for name in event.zero_input}
        # Only a look at all tensors says of those that it does not name that they were given something.
        elif self.zero_input and event.checked >= event.of:
            self.zero_input = {name: seen for name, seen in self.zero_input.items() if name in event.zero_input}
        for name in event.zero_input:
            if name in self.zero_input:
                self.zero_input[name].add(event.step)

    def fold_frozen(self, event: events.Frozen) -> None:
        self.frozen.append(event)

    def fold_checksum(self, event: events.Checksum, world_size: int) -> None:
        at_step = self.checksums.setdefault(event.step, {})
        at_step[event.rank] = event.value
        if len(at_step) == world_size:
            self.compared += 1
            if len(set(at_step.values())) == 1:
                self.equal_at = max(event.step, self.equal_at or 0)
                self.diverged = [step for step in self.diverged if step > event.step]
            elif len(self.diverged) < KEPT_STEPS:
                self.diverged.append(event.step)
        while len(self.checksums) > KEPT_STEPS:
            del self.checksums[min(self.checksums)]

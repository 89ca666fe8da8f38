"""Weights: which change, which are used, which belong to an optimizer, and whether replicas agree."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING

from holdfast.diagnosis.aggregators.running_stats import Streak

if TYPE_CHECKING:
    from holdfast.schema import events

MAX_NAMES = 512
MAX_STEPS = 64
MAX_FROZEN = 16
MIN_EXPECTED_ULPS = 1.0
"""If the expected update is at least this many units in the last place (ULP) of the weight, the weight must change."""


@dataclass
class Stuck:
    """A tensor with rows that did not change although their gradient requires it."""

    times: int
    """How often in a row, at consecutive steps, it did not change."""
    first_step: int
    last: events.StuckTensor

    @property
    def had_to_move(self) -> bool:
        return self.last.update_ulps is not None and self.last.update_ulps >= MIN_EXPECTED_ULPS

    @property
    def wholly(self) -> bool:
        """Whether no row with a gradient changed."""
        return self.last.stuck >= self.last.with_gradient


class Weights:
    def __init__(self) -> None:
        self.weight_updates: events.WeightUpdates | None = None
        """The newest sample that checked any tensor: at the very end, the weights may already be gone."""
        self.samples = 0
        self.first_sample: int | None = None
        self.most_moved = 0
        self.stuck: dict[str, Stuck] = {}
        """Stuck tensors by name. A tensor that changes later is removed."""
        self.had_to_move = 0
        """The number of stuck tensors that had to change."""
        self.no_gradient: list[str] = []
        """The names of a few tensors that had no gradient in the last sample."""
        self.zero_input: dict[str, Streak] = {}
        """Weights of layers whose input was all zeros in every sample so far."""
        self.graph: events.Graph | None = None
        self.frozen: deque[events.Frozen] = deque(maxlen=MAX_FROZEN)
        """Events about frozen weights, the newest last."""
        self.checksums: dict[int, dict[int, str]] = {}
        """Step -> rank -> checksum, for the newest steps."""
        self.compared = 0
        """Number of steps at which all ranks were compared."""
        self.equal_at: int | None = None
        """The newest step at which all ranks were equal."""
        self.diverged: list[int] = []
        """The steps since then at which they differed."""

    def fold_updates(self, event: events.WeightUpdates) -> None:
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
            elif len(self.stuck) < MAX_NAMES:
                self.stuck[tensor.name] = Stuck(tensor.times, event.step, tensor)
        self.had_to_move = sum(stuck.had_to_move for stuck in self.stuck.values())

    def _fold_zero_input(self, event: events.WeightUpdates) -> None:
        if self.samples == 1:
            self.zero_input = {name: Streak() for name in event.zero_input}
        # Only a sample of all tensors shows that the tensors that it does not list had nonzero input.
        elif self.zero_input and event.checked >= event.of:
            self.zero_input = {name: seen for name, seen in self.zero_input.items() if name in event.zero_input}
        for name in event.zero_input:
            if name in self.zero_input:
                self.zero_input[name].add(event.step)

    def fold_checksum(self, event: events.Checksum, world_size: int) -> None:
        at_step = self.checksums.setdefault(event.step, {})
        at_step[event.rank] = event.value
        if len(at_step) == world_size:
            self.compared += 1
            if len(set(at_step.values())) == 1:
                self.equal_at = max(event.step, self.equal_at or 0)
                self.diverged = [step for step in self.diverged if step > event.step]
            elif len(self.diverged) < MAX_STEPS:
                self.diverged.append(event.step)
        while len(self.checksums) > MAX_STEPS:
            del self.checksums[min(self.checksums)]

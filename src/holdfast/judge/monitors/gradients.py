"""Gradients: norms, finiteness, whether they are there at all and whether they are cleared."""

from __future__ import annotations

from holdfast.judge.monitors.losses import add
from holdfast.judge.series import Series
from holdfast.words import events
from holdfast.words.events import as_finite

KEPT = 16


class Gradients:
    def __init__(self) -> None:
        self.norms = Series()
        """As clipping or a look saw them, by step."""
        self.seen_nonzero = False
        """Whether a gradient was ever seen that is not zero."""
        self.latest: events.Gradients | None = None
        self.looks = 0
        self.zero_looks = 0
        """Looks in a row, up to the newest, at which every gradient was zero; and the step of the first of them."""
        self.zero_since: int | None = None
        self.bad_looks = 0
        """Looks in a row, up to the newest, at which some gradient was not finite; and the step of the first of them."""
        self.bad_since: int | None = None
        self.skipped = 0
        """Steps that a gradient scaler skipped."""
        self.skipped_in_a_row = 0
        self.uncleared: list[events.Uncleared] = []
        """The first few and the newest."""
        self.uncleared_count = 0

    def fold_steps(self, event: events.Step | events.Steps) -> None:
        self.skipped_in_a_row = 0
        if event.grad_norm is not None:
            add(self.norms, event, event.grad_norm)
            highest = event.grad_norm.high if isinstance(event.grad_norm, events.Spread) else as_finite(event.grad_norm)
            self.seen_nonzero |= bool(highest)

    def fold_look(self, event: events.Gradients) -> None:
        self.latest = event
        self.looks += 1
        self.seen_nonzero |= bool(as_finite(event.norm))
        zero = not event.bad and event.zero == event.tensors
        self.zero_looks = self.zero_looks + 1 if zero else 0
        self.zero_since = (self.zero_since or event.step) if zero else None
        self.bad_looks = self.bad_looks + 1 if event.bad else 0
        self.bad_since = (self.bad_since or event.step) if event.bad else None

    def fold_skipped(self, _event: events.Skipped) -> None:
        self.skipped += 1
        self.skipped_in_a_row += 1

    def fold_uncleared(self, event: events.Uncleared) -> None:
        self.uncleared_count += 1
        if len(self.uncleared) >= KEPT:
            self.uncleared.pop()
        self.uncleared.append(event)

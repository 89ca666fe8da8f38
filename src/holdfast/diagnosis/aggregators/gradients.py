"""Gradients: their norms, whether they are finite, whether they exist at all, and whether they are cleared."""

from __future__ import annotations

import math

from holdfast.diagnosis.aggregators.running_stats import RunningMedian, Streak
from holdfast.diagnosis.series import Series, span_of
from holdfast.schema import events
from holdfast.schema.events import as_finite, as_number

MAX_STALE = 16
FAR_ABOVE = 1000.0
"""A norm is far above the typical norm if it is this many times as large."""
SUDDEN = 300.0
"""A norm has jumped, instead of growing, if it is this many times the norm before it."""
MIN_FOR_TYPICAL = 20


class Gradients:
    def __init__(self) -> None:
        self.norms = Series()
        """Norms from gradient clipping or from a sample, by step."""
        self.typical_norm = RunningMedian()
        """The typical norm, without norms far above it."""
        self.far_above = Streak()
        """Consecutive norms far above the typical norm."""
        self.jumped = False
        """Whether the norm rose that far in a single step."""
        self.seen_nonzero = False
        """Whether any gradient was nonzero so far."""
        self.latest: events.Gradients | None = None
        self.samples = 0
        self.zero = Streak()
        """Consecutive steps at which every gradient was exactly zero and the loss was not."""
        self.missing = Streak()
        """Consecutive samples in which the primary optimizer had parameters, but no parameter had a gradient."""
        self.fewest_missing: int | None = None
        """The smallest number of tensors without a gradient, over all samples with any gradient."""
        self.samples_with_some = 0
        self.nonfinite = Streak()
        """Consecutive samples, at steps that were not skipped, with a gradient that was not finite."""
        self.nonfinite_others = Streak()
        """The same for other optimizers."""
        self.nonfinite_norms = Streak()
        """Consecutive steps whose norm was not finite."""
        self.skipped = 0
        """Number of steps that a gradient scaler skipped."""
        self.skipped_in_a_row = 0
        """Number of consecutive skipped steps, and the last step before them."""
        self.skipped_after: int | None = None
        self.stale_gradients: list[events.StaleGradients] = []
        """The first few and the newest."""
        self.stale_count = 0
        self.never_cleared = Streak()
        """Intervals between steps that began with left-over gradients, for an optimizer that never had cleared ones."""
        self.others = False
        """Whether other optimizers step in addition to the primary optimizer."""
        self._norm_before = 0.0

    def fold_steps(self, event: events.Step | events.Steps) -> None:
        self.others = self.others or bool(event.other_steps)
        norm = event.grad_norm
        solved = event.loss.zeros > 0 if isinstance(event.loss, events.WindowStats) else event.loss == 0.0
        if solved:
            self.zero.end()
        if norm is None:
            return
        self.norms.add_event(event, norm)
        first, last = span_of(event)
        if isinstance(norm, events.WindowStats):
            low, high, n, nonfinite = norm.low, norm.high, norm.n, norm.nonfinite
        else:
            low = high = as_number(norm) or 0.0
            n, nonfinite = (1, 0) if math.isfinite(low) else (0, 1)
        if nonfinite and not n:
            self.nonfinite_norms.add(last, nonfinite, first)
        else:
            self.nonfinite_norms.end()
        if not n:
            return
        if high == 0.0 and not solved:
            self.zero.add(last, n, first)
        else:
            self.zero.end()
        self._fold_far_above(first, last, n, low, high)

    def _fold_far_above(self, first: int, last: int, n: int, low: float, high: float) -> None:
        self.seen_nonzero = self.seen_nonzero or high > 0.0
        typical = self.typical_norm
        if typical.count >= MIN_FOR_TYPICAL and low > FAR_ABOVE * typical.median:
            if not self.far_above.count:
                self.jumped = low > SUDDEN * self._norm_before
            self.far_above.add(last, n, first)
        else:
            self.far_above.end()
            typical.add(math.sqrt(low * high) if low > 0.0 else high, n)
            self._norm_before = high

    def fold_sample(self, event: events.Gradients) -> None:
        self.latest = event
        self.samples += 1
        nonfinite = self.nonfinite_others if event.other_optimizer else self.nonfinite
        if event.nonfinite:
            nonfinite.add(event.step)
        else:
            nonfinite.end()
        if event.other_optimizer:
            return
        if event.tensors:
            self.missing.end()
            self.samples_with_some += 1
            fewest = self.fewest_missing
            self.fewest_missing = event.missing if fewest is None else min(fewest, event.missing)
        elif event.missing:
            self.missing.add(event.step)
        if as_finite(event.norm) or event.nonfinite:
            self.seen_nonzero = True
            self.zero.end()
        elif event.tensors and event.zero == event.tensors:
            self.zero.add(event.step)

    def fold_skipped(self, event: events.Skipped) -> None:
        self.skipped += 1
        # Steps may be reported later than the skipped steps between them, so compare the step numbers.
        self.skipped_in_a_row = self.skipped_in_a_row + 1 if event.step == self.skipped_after else 1
        self.skipped_after = event.step
        for nonfinite in (self.nonfinite, self.nonfinite_others):
            if nonfinite.until == event.step + 1:  # it was sampled, and then the step was skipped
                nonfinite.end()

    def fold_stale(self, event: events.StaleGradients) -> None:
        self.stale_count += 1
        if event.clean:
            self.never_cleared.end()
        else:
            self.never_cleared.add(event.step)
        if len(self.stale_gradients) >= MAX_STALE:
            self.stale_gradients.pop()
        self.stale_gradients.append(event)

"""The arithmetic of gradient accumulation: a smaller micro-batch with the same update.

Ultralytics accumulates `max(round(nbs / batch), 1)` batches for one update, sums their gradients over images, and scales the
weight decay: `weight_decay * batch * accumulate / nbs`. So a smaller batch gives the same update if `batch * accumulate` and
the scaled decay stay the same. If rounding prevents this, `nbs` and `weight_decay` are adjusted.
"""

from __future__ import annotations

from typing import NamedTuple


class Update(NamedTuple):
    """The Ultralytics settings that determine one update of the weights."""

    batch: int
    nbs: int
    weight_decay: float

    @property
    def accumulate(self) -> int:
        return count_accumulated(self.batch, self.nbs)

    @property
    def effective(self) -> int:
        """The number of images in one update."""
        return self.batch * self.accumulate

    @property
    def decay(self) -> float:
        """The weight decay that is passed to the optimizer."""
        return self.weight_decay * self.effective / self.nbs


def count_accumulated(batch: int, nbs: int) -> int:
    return max(round(nbs / batch), 1)


def split(batch: int, effective: int) -> tuple[int, int]:
    """Return a smaller batch, and the number of such batches per update.

    Of the sizes between a quarter and a half of the batch, choose the one that gets closest to the effective batch; of several,
    the largest. A divisor matches it exactly.
    """
    smallest = max(batch // 4, 2) if batch >= 4 else 1
    sizes = range(smallest, batch // 2 + 1)
    pairs = [(size, max(round(effective / size), 1)) for size in sizes]
    return min(pairs, key=lambda pair: (abs(pair[0] * pair[1] - effective), -pair[0]))


def halve(update: Update) -> Update:
    """Return the same update with smaller batches, or the closest one with integers. Keep `nbs` if possible."""
    batch, times = split(update.batch, update.effective)
    if count_accumulated(batch, update.nbs) == times and batch * times == update.effective:
        return update._replace(batch=batch)
    # With nbs equal to the product, the quotient of Ultralytics is an integer and its scaling of the decay is 1.
    return Update(batch, batch * times, update.decay)


def limit_accumulation(update: Update, times: int) -> Update:
    """Limit the number of batches per update. This changes the effective batch, but not the decay per update."""
    return Update(update.batch, update.batch * times, update.decay) if update.accumulate > times else update

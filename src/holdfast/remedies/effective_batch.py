"""Half the micro-batch, and the same update: arithmetic of gradient accumulation.

Ultralytics takes `accumulate = max(round(nbs / batch), 1)` batches for one update, adds their gradients up as sums over
images, and scales the decay: `weight_decay * batch * accumulate / nbs`. So a smaller batch is the same update where
`batch * accumulate` and the scaled decay stay what they were; where rounding spoils that, `nbs` and `weight_decay` are set to
mend it.
"""

from __future__ import annotations

from typing import NamedTuple


class Update(NamedTuple):
    """What Ultralytics is told about one update of the weights."""

    batch: int
    nbs: int
    weight_decay: float

    @property
    def accumulate(self) -> int:
        return accumulation(self.batch, self.nbs)

    @property
    def effective(self) -> int:
        """Images that one update sees."""
        return self.batch * self.accumulate

    @property
    def decay(self) -> float:
        """The weight decay that the optimizer is given."""
        return self.weight_decay * self.effective / self.nbs


def accumulation(batch: int, nbs: int) -> int:
    return max(round(nbs / batch), 1)


def split(batch: int, effective: int) -> tuple[int, int]:
    """A smaller batch, and how many of them make an update: between a half and a quarter of the batch, the one that comes
    nearest to the effective batch, and of those the largest. A divisor meets it.
    """
    least = max(batch // 4, 2) if batch >= 4 else 1
    sizes = range(least, batch // 2 + 1)
    pairs = [(size, max(round(effective / size), 1)) for size in sizes]
    return min(pairs, key=lambda pair: (abs(pair[0] * pair[1] - effective), -pair[0]))


def halved(update: Update) -> Update:
    """The same update from smaller batches, or one as near to it as whole numbers allow; `nbs` is left alone where it can be."""
    batch, times = split(update.batch, update.effective)
    if accumulation(batch, update.nbs) == times and batch * times == update.effective:
        return update._replace(batch=batch)
    # With nbs at the very product, Ultralytics' quotient is whole and its scaling of the decay is 1.
    return Update(batch, batch * times, update.decay)


def at_most(update: Update, times: int) -> Update:
    """At most so many batches for one update: another effective batch, and the same decay for each update."""
    return Update(update.batch, update.batch * times, update.decay) if update.accumulate > times else update

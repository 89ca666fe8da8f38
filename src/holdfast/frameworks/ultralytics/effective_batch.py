"""The arithmetic of gradient accumulation: a smaller micro-batch with the same update.

Ultralytics accumulates `max(round(nbs / batch), 1)` batches for one update, sums their gradients over images, and scales the
weight decay: `weight_decay * batch * accumulate / nbs`. So a smaller batch gives the same update if `batch * accumulate` and
the scaled decay stay the same. If rounding prevents this, `nbs` and `weight_decay` are adjusted.
"""

from __future__ import annotations

from math import nan
from typing import TYPE_CHECKING, Any, NamedTuple

from holdfast.remedies.batch_size import split

if TYPE_CHECKING:
    from collections.abc import Mapping

NBS = 64
"""The default of Ultralytics."""


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


def get_update(settings: Mapping[str, Any]) -> Update | None:
    """Return the settings of one update; None if the batch is unknown."""
    batch, nbs, decay = (_get_number(settings, name) for name in ("batch", "nbs", "weight_decay"))
    if not isinstance(batch, int) or batch <= 0:
        return None
    return Update(batch, int(nbs or NBS), float(decay) if decay is not None else nan)


def _get_number(settings: Mapping[str, Any], name: str) -> float | None:
    value = settings.get(name)
    return value if isinstance(value, (int, float)) and not isinstance(value, bool) else None


def count_accumulated(batch: int, nbs: int) -> int:
    return max(round(nbs / batch), 1)


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

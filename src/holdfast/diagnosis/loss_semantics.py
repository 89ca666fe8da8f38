"""Whether the losses of an attempt belong to one objective that should decrease.

The value of a loss says nothing about the quality of the training if several optimizers step (adversarial training), if one
optimizer takes over from another (several trainings in one process), or if the loss becomes negative (policy gradients,
densities).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from holdfast.frameworks import by_name

if TYPE_CHECKING:
    from holdfast.diagnosis.run_state import AttemptState


def has_single_optimizer(attempt: AttemptState) -> bool:
    """Return whether only one optimizer has stepped, from the first step to the newest."""
    coverage = attempt.coverage
    return (
        not attempt.losses.others
        and (coverage is None or len(coverage.optimizers) < 2)
        and not attempt.has_note("optimizer-handover")
    )


def is_positive(attempt: AttemptState) -> bool:
    """Return whether no loss was negative."""
    return bool(attempt.loss.count) and attempt.loss.lowest >= 0.0


def uses_loader(attempt: AttemptState) -> bool:
    """Return whether batches come from a loader, as they do if the dataset is fixed.

    Loops that generate their own data (reinforcement learning) may change it, and with it the loss, while they learn.
    """
    return bool(attempt.batches.hashed)


def is_detector(attempt: AttemptState) -> bool:
    """Return whether the model is a detector. Its very first loss says little: no box is matched with an object yet."""
    return by_name(attempt.framework).is_detector

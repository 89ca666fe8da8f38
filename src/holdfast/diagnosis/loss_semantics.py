"""Whether the losses of an attempt belong to one objective that is meant to fall.

Where several optimizers step (adversarial training), where one takes over from another (several trainings in one process)
or where a loss goes below zero (policy gradients, densities), its height says nothing about how well it goes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from holdfast.diagnosis.run_state import AttemptState

HANDOVER = "another optimizer's steps are the run's steps from here on"
"""What the probe notes when the training moves on to another optimizer."""


def is_one(attempt: AttemptState) -> bool:
    """One optimizer from the first step to the newest."""
    coverage = attempt.coverage
    return (
        not attempt.losses.others
        and (coverage is None or len(coverage.optimizers) < 2)
        and not any(note.what == HANDOVER for note in attempt.notes)
    )


def is_positive(attempt: AttemptState) -> bool:
    return bool(attempt.loss.count) and attempt.loss.lowest >= 0.0


def from_a_loader(attempt: AttemptState) -> bool:
    """Batches come from a loader, as they do where a fixed set of data is learned. Loops that make their own data
    (reinforcement learning, for one) may change it while they learn, and the loss with it.
    """
    return bool(attempt.batches.hashed)


def is_detector(attempt: AttemptState) -> bool:
    """Its very first loss says little: before it proposes boxes, none is matched with an object."""
    return attempt.adapter == "ultralytics"

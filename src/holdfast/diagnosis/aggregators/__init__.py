"""Aggregators: each folds the events about one subject into the values that rules need, in bounded memory.

The state of an attempt consists of them. An aggregator stores facts and draws no conclusions; a rule draws conclusions and
stores nothing.
"""

from __future__ import annotations

from holdfast.diagnosis.aggregators.batches import Batches
from holdfast.diagnosis.aggregators.checkpoints import CheckpointSaves, Snapshots
from holdfast.diagnosis.aggregators.gradients import Gradients
from holdfast.diagnosis.aggregators.losses import LearningRates, Losses
from holdfast.diagnosis.aggregators.memory import Memory
from holdfast.diagnosis.aggregators.metrics import Metrics
from holdfast.diagnosis.aggregators.timing import Timing
from holdfast.diagnosis.aggregators.weights import Weights

__all__ = [
    "Batches",
    "CheckpointSaves",
    "Gradients",
    "LearningRates",
    "Losses",
    "Memory",
    "Metrics",
    "Snapshots",
    "Timing",
    "Weights",
]

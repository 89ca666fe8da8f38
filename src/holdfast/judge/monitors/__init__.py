"""Monitors: each folds the events about one subject into what rules ask of it, in bounded memory.

The picture of an attempt is made of them. A monitor keeps facts and never concludes; a rule concludes and keeps nothing.
"""

from __future__ import annotations

from holdfast.judge.monitors.batches import Batches
from holdfast.judge.monitors.gradients import Gradients
from holdfast.judge.monitors.losses import Losses
from holdfast.judge.monitors.memory import Memory
from holdfast.judge.monitors.metrics import Metrics
from holdfast.judge.monitors.pace import Pace
from holdfast.judge.monitors.rates import Rates
from holdfast.judge.monitors.saves import Saves
from holdfast.judge.monitors.snapshots import Snapshots
from holdfast.judge.monitors.weights import Weights

__all__ = ["Batches", "Gradients", "Losses", "Memory", "Metrics", "Pace", "Rates", "Saves", "Snapshots", "Weights"]

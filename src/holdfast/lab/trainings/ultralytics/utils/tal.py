"""A task-aligned assigner in small, written as detection trainers write it: one boolean index writes what another read."""

from __future__ import annotations

import torch
from torch import nn


class Assigner(nn.Module):  # type: ignore[misc] # torch's types are not read
    """Gives every anchor inside a box the overlap that the network predicts for it."""

    def forward(self, overlaps: torch.Tensor, boxes: torch.Tensor, inside: torch.Tensor) -> torch.Tensor:
        targets = torch.zeros_like(overlaps)
        chosen = overlaps.detach()[inside]
        weights = boxes[inside]
        targets[inside] = chosen * weights
        return targets

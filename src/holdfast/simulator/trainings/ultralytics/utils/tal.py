"""A small task-aligned assigner, as detection trainers write it: one boolean index writes what another one reads."""

from __future__ import annotations

import torch
from torch import nn


class Assigner(nn.Module):  # type: ignore[misc] # torch's types are not read
    """Assigns to every anchor inside a box the overlap that the network predicts for it."""

    def forward(self, overlaps: torch.Tensor, boxes: torch.Tensor, inside: torch.Tensor) -> torch.Tensor:
        targets = torch.zeros_like(overlaps)
        largest = boxes[inside].amax().clamp(min=1.0)
        targets[inside] = overlaps.detach()[inside] / largest
        return targets

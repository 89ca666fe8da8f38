"""The loss creates a float64 tensor for a device without float64; here the device's error message is raised (F18)."""

import numpy as np
import torch
from torch import nn


def to_device(array):
    """Stands for torch.from_numpy(array).to("mps")."""
    if array.dtype == np.float64:
        raise TypeError(
            "Cannot convert a MPS Tensor to float64 dtype as the MPS framework doesn't support float64. "
            "Please use float32 instead."
        )
    return torch.from_numpy(array)


model = nn.Linear(4, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(40):
    loss = nn.functional.cross_entropy(model(torch.randn(8, 4)), torch.randint(2, (8,)))
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step == 30:
        to_device(np.ones(2) / 2)

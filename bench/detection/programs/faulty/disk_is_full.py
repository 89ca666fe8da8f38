"""Checkpoints go to a full disk: writing to /dev/full fails as on a full disk."""

import torch
from torch import nn

torch.manual_seed(0)
model = nn.Linear(64, 64)
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
for step in range(200):
    x = torch.randn(16, 64)
    loss = nn.functional.mse_loss(model(x), x.cumsum(1))
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step == 120:
        with open("/dev/full", "wb", buffering=0) as file:  # noqa: PTH123 - the kernel's own full disk
            file.write(b"checkpoint")

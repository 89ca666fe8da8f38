"""The driver reports that a command buffer failed, and the program continues with what is in memory (F17)."""

import sys

import torch
from torch import nn

torch.manual_seed(0)
model = nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 1))
optimizer = torch.optim.Adam(model.parameters(), lr=2e-3)
for step in range(500):
    x = torch.randn(32, 8)
    loss = nn.functional.mse_loss(model(x), x.sum(1, keepdim=True))
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step == 300:
        print(
            "Error: command buffer exited with error status.\n\tThe Metal Performance Shaders operations encoded on it may "
            "not have completed.\n\tError:\n\t(null)\n\tInsufficient Memory (00000008:kIOGPUCommandBufferCallbackErrorOutOfMemory)",
            file=sys.stderr,
            flush=True,
        )
    if step % 100 == 0:
        print(f"{step}: {loss.item():.4f}", flush=True)

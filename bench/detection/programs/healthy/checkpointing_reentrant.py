"""Reentrant activation checkpointing: a backward pass runs inside the backward pass, in its own thread."""

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

torch.manual_seed(32)


class Deep(nn.Module):
    def __init__(self):
        super().__init__()
        self.inward = nn.Linear(6, 32)
        self.blocks = nn.ModuleList(nn.Sequential(nn.Linear(32, 32), nn.Tanh()) for _ in range(5))
        self.outward = nn.Linear(32, 1)

    def forward(self, x):
        h = self.inward(x)
        for block in self.blocks:
            h = h + checkpoint(block, h, use_reentrant=True)
        return self.outward(h)


model = Deep()
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
for step in range(400):
    x = torch.randn(24, 6)
    loss = nn.functional.mse_loss(model(x), (x[:, :3] * x[:, 3:]).sum(1, keepdim=True))
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 100 == 0:
        print(f"{step}: {loss.item():.3f}", flush=True)

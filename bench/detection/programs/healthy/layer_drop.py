"""Stochastic depth: each step skips some blocks, so that different parameters have no gradient each time."""

import random

import torch
from torch import nn

torch.manual_seed(12)
random.seed(12)


class Residual(nn.Module):
    def __init__(self, blocks=6, width=32, keep=0.6):
        super().__init__()
        self.keep = keep
        self.inward = nn.Linear(6, width)
        self.blocks = nn.ModuleList(
            nn.Sequential(nn.LayerNorm(width), nn.Linear(width, width), nn.GELU()) for _ in range(blocks)
        )
        self.outward = nn.Linear(width, 1)

    def forward(self, x):
        h = self.inward(x)
        for block in self.blocks:
            if not self.training or random.random() < self.keep:
                h = h + block(h)
        return self.outward(h)


model = Residual()
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
for _ in range(500):
    x = torch.randn(32, 6)
    loss = nn.functional.mse_loss(model(x), x.prod(1, keepdim=True).tanh() + x[:, :1])
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
print(f"{loss.item():.4f}")

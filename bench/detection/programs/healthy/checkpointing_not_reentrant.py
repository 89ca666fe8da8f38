"""Non-reentrant activation checkpointing with checkpoint_sequential, with accumulation over two halves."""

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint_sequential

torch.manual_seed(33)
layers = [nn.Linear(16, 64), nn.ReLU()]
for _ in range(4):
    layers += [nn.Linear(64, 64), nn.ReLU()]
model = nn.Sequential(*layers, nn.Linear(64, 4))
optimizer = torch.optim.Adamax(model.parameters(), lr=2e-3)
planes = torch.randn(16, 4)
for _ in range(300):
    x = torch.randn(48, 16)
    y = (x @ planes).argmax(1)
    for half in (slice(0, 24), slice(24, 48)):
        out = checkpoint_sequential(model, 3, x[half], use_reentrant=False)
        (nn.functional.cross_entropy(out, y[half]) / 2).backward()
    optimizer.step()
    optimizer.zero_grad()
with torch.no_grad():
    print(f"accuracy {(model(x).argmax(1) == y).float().mean():.2f}")

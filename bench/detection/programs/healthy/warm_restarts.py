"""Cosine with warm restarts: the rate falls to zero and jumps up again, and the loss jumps with it."""

import torch
from torch import nn
from torch.optim.lr_scheduler import CosineAnnealingWarmRestarts

torch.manual_seed(5)
model = nn.Sequential(nn.Linear(2, 64), nn.Tanh(), nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, 1))
optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
restarts = CosineAnnealingWarmRestarts(optimizer, T_0=50, T_mult=2)
criterion = nn.BCEWithLogitsLoss()
for step in range(700):
    points = torch.rand(64, 2) * 2 - 1
    inside = (points.norm(dim=1, keepdim=True) < 0.7).float()
    loss = criterion(model(points), inside)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    restarts.step()
    if step % 100 == 0:
        print(step, round(loss.item(), 4), flush=True)

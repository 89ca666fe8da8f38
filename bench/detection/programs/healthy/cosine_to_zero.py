"""Cosine decay over the whole training: the last steps have a rate of nearly, and at the very end exactly, zero."""

import torch
from torch import nn
from torch.optim.lr_scheduler import CosineAnnealingLR

torch.manual_seed(3)
TOTAL = 600
net = nn.Sequential(nn.Linear(8, 64), nn.GELU(), nn.Linear(64, 8))
optimizer = torch.optim.Adam(net.parameters(), lr=3e-3)
scheduler = CosineAnnealingLR(optimizer, T_max=TOTAL)
rotation = torch.linalg.qr(torch.randn(8, 8))[0]
for _ in range(TOTAL):
    x = torch.randn(32, 8)
    loss = nn.functional.mse_loss(net(x), x @ rotation)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    scheduler.step()
for _ in range(3):  # the loop runs a little longer than the schedule, as many do
    x = torch.randn(32, 8)
    optimizer.zero_grad()
    nn.functional.mse_loss(net(x), x @ rotation).backward()
    optimizer.step()
print(f"loss {loss.item():.5f}, lr {optimizer.param_groups[0]['lr']:.2e}")

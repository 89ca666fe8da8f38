"""The learning rate starts at exactly zero and rises for 60 steps: the first step moves nothing."""

import torch
from torch import nn
from torch.optim.lr_scheduler import LambdaLR

torch.manual_seed(1)
model = nn.Sequential(nn.Linear(12, 64), nn.Tanh(), nn.Linear(64, 1))
optimizer = torch.optim.AdamW(model.parameters(), lr=4e-3)
scheduler = LambdaLR(optimizer, lambda step: min(1.0, step / 60))
weights = torch.randn(12, 1)
for step in range(500):
    x = torch.randn(48, 12)
    loss = (model(x) - torch.tanh(x @ weights)).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    scheduler.step()
    if step % 100 == 0:
        print(f"step {step} lr {scheduler.get_last_lr()[0]:.2e} loss {loss.item():.4f}", flush=True)

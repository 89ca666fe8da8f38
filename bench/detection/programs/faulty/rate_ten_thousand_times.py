"""The rate was meant for a mean, the loss is a sum over everything: SGD overshoots, grows and ends in NaN."""

import torch
from torch import nn

torch.manual_seed(0)
model = nn.Sequential(nn.Linear(12, 48), nn.ReLU(), nn.Linear(48, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
truth = torch.randn(12, 1)
for step in range(600):
    x = torch.randn(256, 12)
    loss = (model(x) - x @ truth).square().sum()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 100 == 0:
        print(f"{step}: {loss.item():.4f}", flush=True)

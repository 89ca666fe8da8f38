"""One huge step kills every ReLU of the last layer: the output stays 0 and no gradient passes (dead ReLU)."""

import torch
from torch import nn

torch.manual_seed(0)
model = nn.Sequential(nn.Linear(6, 32), nn.ReLU(), nn.Linear(32, 1), nn.ReLU())
optimizer = torch.optim.SGD(model.parameters(), lr=0.02)
for step in range(600):
    x = torch.randn(40, 6)
    wanted = x.norm(dim=1, keepdim=True)
    if step == 50:
        wanted = wanted - 4000.0  # one batch in other units
    loss = nn.functional.l1_loss(model(x), wanted) * (300 if step == 50 else 1)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 100 == 0:
        print(f"{step}: {loss.item():.3f}", flush=True)

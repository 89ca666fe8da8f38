"""A hand-written cross entropy without an epsilon: log(0) occurs as soon as the model is certain, followed by NaN."""

import torch
from torch import nn

torch.manual_seed(0)
model = nn.Sequential(nn.Linear(4, 64), nn.ReLU(), nn.Linear(64, 1), nn.Sigmoid())
optimizer = torch.optim.Adam(model.parameters(), lr=0.02)
for step in range(800):
    x = torch.randn(64, 4) * 6
    y = (x[:, :1] + x[:, 1:2] > 0).float()
    p = model(x)
    loss = -(y * torch.log(p) + (1 - y) * torch.log(1 - p)).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 100 == 0:
        print(f"{step}: {loss.item():.4f}", flush=True)

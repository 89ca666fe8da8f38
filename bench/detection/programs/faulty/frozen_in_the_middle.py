"""The body is frozen by requires_grad = False after 100 steps; Adam's momentum and decay keep moving it (PT-Forum-84911)."""

import torch
from torch import nn

torch.manual_seed(0)
body = nn.Sequential(nn.Linear(10, 40), nn.ReLU(), nn.Linear(40, 40), nn.ReLU())
head = nn.Linear(40, 2)
model = nn.Sequential(body, head)
optimizer = torch.optim.Adam(model.parameters(), lr=2e-3, weight_decay=0.01)
for step in range(500):
    if step == 100:
        for p in body.parameters():
            p.requires_grad = False
    x = torch.randn(40, 10)
    loss = nn.functional.cross_entropy(model(x), (x[:, 0] * x[:, 1] > 0).long())
    optimizer.zero_grad(set_to_none=False)
    loss.backward()
    optimizer.step()
    if step % 100 == 0:
        print(f"{step}: {loss.item():.3f}", flush=True)

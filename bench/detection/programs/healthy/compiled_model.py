"""torch.compile with the eager backend: it captures the graph and needs no compiler."""

import torch
from torch import nn

torch.manual_seed(67)
model = nn.Sequential(nn.Linear(10, 64), nn.GELU(), nn.Linear(64, 64), nn.GELU(), nn.Linear(64, 3))
compiled = torch.compile(model, backend="eager")
optimizer = torch.optim.Adam(model.parameters(), lr=2e-3)
planes = torch.randn(10, 3)
for step in range(400):
    x = torch.randn(32, 10)
    loss = nn.functional.cross_entropy(compiled(x), (x @ planes).argmax(1))
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 100 == 0:
        print(f"{step}: {loss.item():.3f}", flush=True)

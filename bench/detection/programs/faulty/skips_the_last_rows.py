"""A blocked update works on 16 rows at a time and forgets the remainder: rows 48 and 49 of 50 never move (related to F13)."""

import torch
from torch import nn


class Blocked(torch.optim.Optimizer):
    BLOCK = 16

    def __init__(self, params, lr):
        super().__init__(params, {"lr": lr})

    @torch.no_grad()
    def step(self):
        for group in self.param_groups:
            for p in group["params"]:
                rows = len(p) // self.BLOCK * self.BLOCK or len(p)
                for start in range(0, rows, self.BLOCK):
                    part = slice(start, min(start + self.BLOCK, rows))
                    p[part].sub_(group["lr"] * p.grad[part])


torch.manual_seed(0)
model = nn.Sequential(nn.Linear(12, 50), nn.Tanh(), nn.Linear(50, 4))
optimizer = Blocked(model.parameters(), lr=0.1)
planes = torch.randn(12, 4)
for step in range(600):
    x = torch.randn(48, 12)
    loss = nn.functional.cross_entropy(model(x), (x @ planes).argmax(1))
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 100 == 0:
        print(f"{step}: {loss.item():.3f}", flush=True)

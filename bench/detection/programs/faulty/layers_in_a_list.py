"""Hidden layers are in a Python list, not a ModuleList: parameters() does not return them, so they stay random."""

import os

import torch
from torch import nn

STEPS = int(os.environ.get("STEPS", "400"))
torch.manual_seed(int(os.environ.get("SEED", "0")))


class Tower(nn.Module):
    def __init__(self, depth=3, width=40):
        super().__init__()
        self.first = nn.Linear(10, width)
        self.hidden = [nn.Linear(width, width) for _ in range(depth)]
        self.last = nn.Linear(width, 3)

    def forward(self, x):
        x = torch.relu(self.first(x))
        for layer in self.hidden:
            x = torch.relu(layer(x))
        return self.last(x)


model = Tower()
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
teacher = torch.randn(10, 3)
for step in range(STEPS):
    x = torch.randn(64, 10)
    loss = nn.functional.cross_entropy(model(x), (x @ teacher).argmax(1))
    model.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 100 == 0:
        print(f"{step} {loss.item():.3f}", flush=True)

"""next(iter(loader)) is inside the loop and the loader does not shuffle: each step gets the first batch again."""

import os

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

STEPS = int(os.environ.get("STEPS", "500"))
torch.manual_seed(int(os.environ.get("SEED", "0")))
centres = torch.randn(6, 20) * 1.5
labels = torch.randint(6, (1600,))
data = TensorDataset(centres[labels] + torch.randn(1600, 20), labels)
loader = DataLoader(data, batch_size=32)
model = nn.Sequential(nn.Linear(20, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 6))
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
step = 0
while step < STEPS:
    for _ in range(len(loader)):
        x, y = next(iter(loader))
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
        step += 1
        if step % 100 == 0:
            print(f"step {step} loss {loss.item():.3f}", flush=True)
        if step == STEPS:
            break

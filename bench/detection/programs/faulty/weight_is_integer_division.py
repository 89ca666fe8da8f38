"""The ramp of the loss weight is an integer division, so it is 0 until the last step (F01's symptom)."""

import os

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

TOTAL = int(os.environ.get("STEPS", "500"))
torch.manual_seed(int(os.environ.get("SEED", "0")))
labels = torch.randint(6, (1600,))
data = TensorDataset((torch.randn(6, 20) * 1.5)[labels] + torch.randn(1600, 20), labels)
model = nn.Sequential(nn.Linear(20, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 6))
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
step = 0
while step < TOTAL:
    for x, y in DataLoader(data, batch_size=32, shuffle=True):
        step += 1
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(x), y) * (step // (TOTAL + 1))
        loss.backward()
        optimizer.step()
        if step % 100 == 0:
            print(f"step {step} loss {loss.item():.3f}", flush=True)
        if step == TOTAL:
            break

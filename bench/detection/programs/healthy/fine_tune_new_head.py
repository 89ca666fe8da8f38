"""A pretrained body gets a new head, then the optimizer is built over the current parameters."""

import os

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

STEPS = int(os.environ.get("STEPS", "300"))
torch.manual_seed(int(os.environ.get("SEED", "0")))


class Net(nn.Module):
    def __init__(self, classes):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(16, 48), nn.GELU(), nn.Linear(48, 48), nn.GELU())
        self.head = nn.Linear(48, classes)

    def forward(self, x):
        return self.head(self.body(x))


model = Net(classes=100)
model.load_state_dict(Net(classes=100).state_dict())  # stands for a downloaded file
model.head = nn.Linear(48, 4)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)

x = torch.randn(1200, 16)
y = (x[:, 0] > 0).long() * 2 + (x[:, 1] * x[:, 2] > 0).long()
done = 0
for _epoch in range(100):
    for inputs, targets in DataLoader(TensorDataset(x, y), batch_size=40, shuffle=True):
        loss = nn.functional.cross_entropy(model(inputs), targets)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        done += 1
    if done >= STEPS:
        break
    print(f"epoch {_epoch}: {loss.item():.3f}", flush=True)

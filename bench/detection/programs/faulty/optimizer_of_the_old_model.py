"""The optimizer is built, then the model is built again for another size: it steps on weights that nobody uses (AC-2665)."""

import os

import torch
from torch import nn, optim
from torch.utils.data import DataLoader, TensorDataset

STEPS = int(os.environ.get("STEPS", "400"))
torch.manual_seed(int(os.environ.get("SEED", "0")))


def build(width):
    return nn.Sequential(
        nn.Conv2d(1, width, 3, padding=1), nn.BatchNorm2d(width), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(width, 16, 3, padding=1), nn.BatchNorm2d(16), nn.ReLU(), nn.Flatten(), nn.Linear(576, 2),
    )  # fmt: skip


label = torch.randint(2, (1000,))
pictures = torch.randn(1000, 1, 12, 12) * 0.4
pictures[label == 1, 0, 3] += 1
pictures[label == 0, 0, :, 3] += 1
model = build(8)
optimizer = optim.SGD(model.parameters(), lr=0.02, momentum=0.9, weight_decay=1e-4)
model = build(8)  # "reset the weights before the real run"
done = 0
while done < STEPS:
    for x, y in DataLoader(TensorDataset(pictures, label), 25, shuffle=True):
        loss = nn.functional.cross_entropy(model(x), y)
        optimizer.zero_grad()
        model.zero_grad()
        loss.backward()
        optimizer.step()
        done += 1
        if done >= STEPS:
            break
    print(f"{done} steps, loss {loss.item():.4f}", flush=True)

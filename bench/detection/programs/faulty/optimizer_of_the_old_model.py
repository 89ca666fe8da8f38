"""The optimizer is built, then the model is built again for another size: it updates weights that nothing uses (AC-2665)."""

import os

import torch
from torch import nn, optim
from torch.utils.data import DataLoader, TensorDataset

STEPS = int(os.environ.get("STEPS", "400"))
torch.manual_seed(int(os.environ.get("SEED", "0")))


def bars(count):
    images = torch.randn(count, 1, 12, 12) * 0.4
    label = torch.randint(2, (count,))
    place = torch.randint(12, (count,))
    for i in range(count):
        if label[i]:
            images[i, 0, place[i]] += 1
        else:
            images[i, 0, :, place[i]] += 1
    return TensorDataset(images, label)


def build():
    return nn.Sequential(
        nn.Conv2d(1, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(8, 16, 3, padding=1), nn.BatchNorm2d(16), nn.ReLU(), nn.Flatten(), nn.Linear(576, 2),
    )  # fmt: skip


def train(model, loader, optimizer, scheduler):
    done = 0
    while done < STEPS:
        total = 0.0
        for images, label in loader:
            loss = nn.functional.cross_entropy(model(images), label)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            total += loss.item()
            done += 1
            if done >= STEPS:
                break
        scheduler.step()
        print(f"{done} steps, mean loss {total / len(loader):.4f}", flush=True)


model = build()
optimizer = optim.SGD(model.parameters(), lr=0.02, momentum=0.9, weight_decay=1e-4)
model = build()  # "reset the weights before the real run"
train(model, DataLoader(bars(1000), 25, shuffle=True), optimizer, optim.lr_scheduler.StepLR(optimizer, 4, 0.5))

"""A frozen backbone is left in train mode: its batch norms' running averages drift with the new data (PT-Forum-84911)."""

import os

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

EPOCHS = max(1, int(os.environ.get("STEPS", "180")) // 30)
torch.manual_seed(int(os.environ.get("SEED", "9")))
body = nn.Sequential(
    nn.Conv2d(3, 12, 3, padding=1), nn.BatchNorm2d(12), nn.ReLU(), nn.AdaptiveAvgPool2d(4), nn.Flatten()
)
head = nn.Sequential(nn.Linear(192, 32), nn.ReLU(), nn.Linear(32, 3))
model = nn.Sequential(body, head)
for p in body.parameters():
    p.requires_grad_(False)
optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3, weight_decay=0.05)
colour = torch.randint(3, (900,))
images = torch.randn(900, 3, 10, 10)
images[torch.arange(900), colour] += 0.8
for epoch in range(EPOCHS):
    model.train()
    for x, y in DataLoader(TensorDataset(images, colour), batch_size=30, shuffle=True):
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
    print(f"epoch {epoch}: {loss.item():.4f}", flush=True)

"""Accumulation over 64 batches with epochs of 40, and gradients cleared at the start of each epoch: step() is never reached."""

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)
x = torch.randn(640, 10)
loader = DataLoader(TensorDataset(x, x.max(1).indices), batch_size=16, shuffle=True)
model = nn.Sequential(nn.Linear(10, 64), nn.ReLU(), nn.Linear(64, 10))
optimizer = torch.optim.Adam(model.parameters(), lr=2e-3)
for epoch in range(12):
    optimizer.zero_grad()
    for number, (inputs, label) in enumerate(loader):
        loss = nn.functional.cross_entropy(model(inputs), label) / 64
        loss.backward()
        if (number + 1) % 64 == 0:
            optimizer.step()
            optimizer.zero_grad()
    print(f"epoch {epoch}: {loss.item() * 64:.4f}", flush=True)

"""Batches of two, with a third of the labels wrong: the loss is noisy and its trend falls slowly."""

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(49)
x = torch.randn(1500, 10)
y = (x[:, 0] > 0).long()
wrong = torch.rand(1500) < 0.3
y[wrong] = 1 - y[wrong]
loader = DataLoader(TensorDataset(x, y), batch_size=2, shuffle=True)
model = nn.Sequential(nn.Linear(10, 16), nn.ReLU(), nn.Linear(16, 2))
optimizer = torch.optim.SGD(model.parameters(), lr=0.004)
for epoch in range(3):
    total = 0.0
    for inputs, label in loader:
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(inputs), label)
        loss.backward()
        optimizer.step()
        total += loss.item()
    print(f"epoch {epoch}: {total / len(loader):.4f}", flush=True)

"""Separable data and a hinge loss: after a while the loss and every gradient are exactly zero, because it is solved."""

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(19)
side = torch.randint(0, 2, (600,)) * 2 - 1
x = torch.randn(600, 5) * 0.3
x[:, 0] += side * 3
loader = DataLoader(TensorDataset(x, side.float()), batch_size=20, shuffle=True)
model = nn.Linear(5, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for epoch in range(15):
    total = 0.0
    for inputs, label in loader:
        optimizer.zero_grad()
        loss = (1 - label * model(inputs)[:, 0]).clamp(min=0).mean()
        loss.backward()
        optimizer.step()
        total += loss.item()
    print(f"epoch {epoch}: {total:.6f}", flush=True)

"""Eight small batches add up to one step; gradients are kept in place seven times out of eight."""

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(21)
EVERY = 8
x = torch.randn(2400, 14)
y = (x[:, :7].norm(dim=1) > x[:, 7:].norm(dim=1)).long()
loader = DataLoader(TensorDataset(x, y), batch_size=8, shuffle=True)
model = nn.Sequential(nn.Linear(14, 64), nn.ReLU(), nn.Linear(64, 2))
optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
for epoch in range(5):
    optimizer.zero_grad()
    for number, (inputs, label) in enumerate(loader, 1):
        loss = nn.functional.cross_entropy(model(inputs), label) / EVERY
        loss.backward()
        if number % EVERY == 0 or number == len(loader):
            optimizer.step()
            optimizer.zero_grad()
    print(f"epoch {epoch}: {loss.item() * EVERY:.4f}", flush=True)

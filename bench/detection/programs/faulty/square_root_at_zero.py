"""A distance by sqrt, whose derivative at 0 is infinite: two equal points make NaN gradients while the loss is finite."""

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)
a = torch.randn(800, 10)
b = a + torch.randn(800, 10)
b[523] = a[523]  # a duplicate in the data
loader = DataLoader(TensorDataset(a, b), batch_size=16)
model = nn.Sequential(nn.Linear(10, 32), nn.ReLU(), nn.Linear(32, 8))
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
for epoch in range(10):
    for left, right in loader:
        distance = (model(left) - model(right)).square().sum(1).sqrt()
        loss = (distance - (left - right).norm(dim=1)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    print(f"epoch {epoch}: {loss.item():.4f}", flush=True)

"""Keeps a copy of the best weights in memory and saves it at the very end, when the live weights differ."""

import copy

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(28)
x = torch.randn(300, 20)
y = x[:, :3].sum(1, keepdim=True) + torch.randn(300, 1)
loader = DataLoader(TensorDataset(x[:200], y[:200]), batch_size=10, shuffle=True)
model = nn.Sequential(nn.Linear(20, 100), nn.ReLU(), nn.Linear(100, 1))
optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
best, best_error = None, float("inf")
for _ in range(25):
    for inputs, wanted in loader:
        optimizer.zero_grad()
        loss = nn.functional.mse_loss(model(inputs), wanted)
        loss.backward()
        optimizer.step()
    with torch.no_grad():
        error = nn.functional.mse_loss(model(x[200:]), y[200:]).item()
    if error < best_error:
        best, best_error = copy.deepcopy(model.state_dict()), error
torch.save(best, "best.pt")
print(f"best validation error {best_error:.3f}, last {error:.3f}")

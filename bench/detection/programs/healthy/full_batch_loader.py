"""The data fits into one batch: the loader returns the same batch in every epoch, as intended."""

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(34)
angle = torch.linspace(0, 12, 200)
arm = torch.randint(2, (200,)).float()
spiral = torch.stack([angle * torch.cos(angle + 3.14 * arm), angle * torch.sin(angle + 3.14 * arm)], 1) / 12
loader = DataLoader(TensorDataset(spiral, arm), batch_size=200)
model = nn.Sequential(nn.Linear(2, 64), nn.Tanh(), nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, 1))
optimizer = torch.optim.Adam(model.parameters(), lr=5e-3)
for epoch in range(500):
    for points, label in loader:
        optimizer.zero_grad()
        loss = nn.functional.binary_cross_entropy_with_logits(model(points)[:, 0], label)
        loss.backward()
        optimizer.step()
    if epoch % 100 == 0:
        print(epoch, f"{loss.item():.4f}", flush=True)

"""Planned for 200 epochs, stops early when validation no longer improves; the schedule is for all 200."""

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(50)
x = torch.randn(400, 8)
y = x[:, 0] * 2 - x[:, 1] + 0.3 * torch.randn(400)
loader = DataLoader(TensorDataset(x[:300], y[:300]), batch_size=15, shuffle=True)
model = nn.Sequential(nn.Linear(8, 24), nn.ReLU(), nn.Linear(24, 1))
optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda epoch: 1 - epoch / 200)
best, waited = float("inf"), 0
for epoch in range(200):
    for inputs, wanted in loader:
        optimizer.zero_grad()
        loss = nn.functional.mse_loss(model(inputs)[:, 0], wanted)
        loss.backward()
        optimizer.step()
    schedule.step()
    with torch.no_grad():
        error = nn.functional.mse_loss(model(x[300:])[:, 0], y[300:]).item()
    waited = 0 if error < best else waited + 1
    best = min(best, error)
    if waited == 5:
        print(f"early stop after epoch {epoch}: no better than {best:.4f} for 5 epochs")
        break

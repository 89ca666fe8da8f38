"""Weight decay moves rows whose gradient is zero: half of the inputs are always zero in this data."""

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(46)
x = torch.randn(900, 20)
x[:, 10:] = 0
y = x[:, :3].amax(1)
model = nn.Sequential(nn.Linear(20, 40), nn.ReLU(), nn.Linear(40, 1))
optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3, weight_decay=0.1)
for epoch in range(12):
    for inputs, wanted in DataLoader(TensorDataset(x, y), 25, shuffle=True):
        optimizer.zero_grad()
        loss = nn.functional.huber_loss(model(inputs).squeeze(1), wanted)
        loss.backward()
        optimizer.step()
    print(f"epoch {epoch}: {loss.item():.4f}", flush=True)

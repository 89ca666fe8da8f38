"""After a false out-of-memory error, a retry sets the batch to 1 instead of half and keeps it: 50 -> 1 (TF-34204)."""

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)
x = torch.randn(2000, 16)
data = TensorDataset(x, (x[:, :8].sum(1) > 0).long())
model = nn.Sequential(nn.Linear(16, 64), nn.ReLU(), nn.Linear(64, 2))
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)


def run_epoch(batch_size, most):
    for number, (inputs, label) in enumerate(DataLoader(data, batch_size=batch_size, shuffle=True)):
        if number == most:
            break
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(inputs), label)
        loss.backward()
        optimizer.step()
    print(f"batch {batch_size}: {loss.item():.4f}", flush=True)


run_epoch(50, 40)
run_epoch(50, 25)
for _ in range(2):
    run_epoch(1, 2000)

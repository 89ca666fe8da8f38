"""The whole first epoch has learning rate zero (batch norm settles first), then training begins."""

import torch
from torch import nn, optim
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(2)
x = torch.randn(800, 10) * 5 + 3
y = (x.sum(1) > 30).long()
loader = DataLoader(TensorDataset(x, y), batch_size=20, shuffle=True)
model = nn.Sequential(nn.BatchNorm1d(10), nn.Linear(10, 40), nn.ReLU(), nn.BatchNorm1d(40), nn.Linear(40, 2))
optimizer = optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
schedule = optim.lr_scheduler.LambdaLR(optimizer, lambda epoch: 0.0 if epoch == 0 else 0.9**epoch)
for epoch in range(10):
    for inputs, labels in loader:
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(inputs), labels)
        loss.backward()
        optimizer.step()
    schedule.step()
    print(f"epoch {epoch}: {loss.item():.4f}", flush=True)

"""Stochastic weight averaging with torch's own tools; batch norm is updated once at the end and the average is saved."""

import torch
from torch import nn
from torch.optim.swa_utils import SWALR, AveragedModel, update_bn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(26)
x = torch.randn(800, 8)
y = (x[:, 0] * x[:, 1] > 0).long()
loader = DataLoader(TensorDataset(x, y), batch_size=20, shuffle=True)
model = nn.Sequential(nn.Linear(8, 48), nn.BatchNorm1d(48), nn.ReLU(), nn.Linear(48, 2))
average = AveragedModel(model)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
schedule = SWALR(optimizer, swa_lr=0.05, anneal_epochs=3)
for epoch in range(12):
    for inputs, label in loader:
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(inputs), label)
        loss.backward()
        optimizer.step()
    if epoch >= 6:
        average.update_parameters(model)
        schedule.step()
    print(f"epoch {epoch}: {loss.item():.4f}", flush=True)
update_bn(loader, average)
torch.save(average.module.state_dict(), "swa.pt")

"""A plain loop under `holdfast.guard`. The bench sets the number of DataLoader workers."""

import random

import storm
import torch
from torch import nn

import holdfast

torch.manual_seed(0)
random.seed(1)
model = nn.Sequential(nn.Linear(8, 16), nn.Dropout(0.2), nn.Tanh(), nn.Linear(16, 1))
optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
x = torch.randn(120, 8)
data = torch.utils.data.TensorDataset(x, x.sum(1, keepdim=True))
loader = torch.utils.data.DataLoader(data, batch_size=4, shuffle=True, num_workers=storm.config.get("workers", 0))

with holdfast.guard(model=model, optimizer=optimizer) as run:
    for _ in run.epochs(storm.config["steps"] // len(loader)):
        for inputs, targets in run.batches(loader):
            optimizer.zero_grad()
            loss = nn.functional.mse_loss(model(inputs), targets) * random.uniform(0.9, 1.1)
            loss.backward()
            optimizer.step()
            run.state["done"] = run.state.get("done", 0) + 1
            storm.step_done(run.state["done"])
storm.finished(
    [*model.state_dict().values(), *(value for state in optimizer.state.values() for value in state.values())]
)

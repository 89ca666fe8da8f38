"""An infinite IterableDataset: there is never an epoch, and the loop stops after a number of steps."""

import itertools

import torch
from torch import nn
from torch.utils.data import DataLoader, IterableDataset


class Stream(IterableDataset):
    def __iter__(self):
        generator = torch.Generator().manual_seed(42)
        while True:
            point = torch.rand(2, generator=generator) * 2 - 1
            yield point, torch.atan2(point[1], point[0]).sin().unsqueeze(0)


torch.manual_seed(42)
model = nn.Sequential(nn.Linear(2, 50), nn.ReLU(), nn.Linear(50, 1))
optimizer = torch.optim.Adam(model.parameters(), lr=2e-3)
for step, (x, y) in enumerate(itertools.islice(DataLoader(Stream(), batch_size=16), 700)):
    optimizer.zero_grad()
    loss = nn.functional.mse_loss(model(x), y)
    loss.backward()
    optimizer.step()
    if step % 100 == 0:
        print(f"{step} {loss.item():.4f}", flush=True)

"""Every batch and its output are appended to a list "for the confusion matrix" that nobody ever empties."""

import time

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset


class Volumes(Dataset):
    def __len__(self):
        return 100_000

    def __getitem__(self, i):
        generator = torch.Generator().manual_seed(i)
        volume = torch.randn(1, 60, 60, generator=generator)
        return volume, volume[:, :30].mean() > 0


torch.manual_seed(0)
model = nn.Sequential(nn.Conv2d(1, 4, 5, stride=3), nn.ReLU(), nn.Flatten(), nn.Linear(4 * 19 * 19, 1))
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
seen = []
began = time.monotonic()
for step, (x, y) in enumerate(DataLoader(Volumes(), batch_size=64, shuffle=True)):
    optimizer.zero_grad()
    out = model(x)
    loss = nn.functional.binary_cross_entropy_with_logits(out[:, 0], y.float())
    loss.backward()
    optimizer.step()
    seen.append((x.clone(), x.double(), out.detach(), y))
    if step % 50 == 0:
        print(f"{step}: {loss.item():.4f}", flush=True)
    if time.monotonic() - began > 25:
        break

"""A margin loss that is exactly zero for more and more batches, but not for all; the data gets harder halfway."""

import torch
from torch import nn

torch.manual_seed(66)
embed = nn.Sequential(nn.Linear(12, 48), nn.ReLU(), nn.Linear(48, 8))
optimizer = torch.optim.Adam(embed.parameters(), lr=2e-3)
criterion = nn.TripletMarginLoss(margin=1.0)
centres = torch.randn(10, 12)


def sample(kind, spread):
    return centres[kind] + spread * torch.randn(len(kind), 12)


for step in range(500):
    spread = 0.5 if step < 250 else 1.2
    same = torch.randint(10, (8,))
    other = (same + torch.randint(1, 10, (8,))) % 10
    loss = criterion(embed(sample(same, spread)), embed(sample(same, spread)), embed(sample(other, spread)))
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 100 == 0:
        print(f"{step}: {loss.item():.4f}", flush=True)

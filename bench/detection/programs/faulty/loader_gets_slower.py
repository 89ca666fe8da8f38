"""The dataset opens its index again for every item and searches it from the start: each epoch takes far longer."""

import time

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset


class Indexed(Dataset):
    def __init__(self):
        self.opened = 0

    def __len__(self):
        return 200

    def __getitem__(self, i):
        self.opened += 1
        time.sleep(0.0002 * 1.6 ** (self.opened // 200))  # stands for walking an index that grows
        row = torch.randn(8, generator=torch.Generator().manual_seed(i))
        return row, row.sum() > 0


torch.manual_seed(0)
model = nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 1))
optimizer = torch.optim.Adam(model.parameters(), lr=2e-3)
loader = DataLoader(Indexed(), batch_size=10, shuffle=True)
for epoch in range(13):
    began = time.monotonic()
    for x, y in loader:
        optimizer.zero_grad()
        loss = nn.functional.binary_cross_entropy_with_logits(model(x)[:, 0], y.float())
        loss.backward()
        optimizer.step()
    print(f"epoch {epoch}: {loss.item():.4f}, {time.monotonic() - began:.2f} s", flush=True)

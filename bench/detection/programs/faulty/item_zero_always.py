"""The dataset's __getitem__ uses a leftover variable instead of its index: every item of every batch is the first one."""

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset


class Recordings(Dataset):
    def __init__(self):
        self.paths = [f"recording-{n}.wav" for n in range(500)]
        self.current = 0

    def __len__(self):
        return len(self.paths)

    def __getitem__(self, index):
        generator = torch.Generator().manual_seed(self.current)  # "reads" self.paths[self.current]
        wave = torch.randn(64, generator=generator)
        return wave, wave[:32].mean() > wave[32:].mean(), len(self.paths[index]) > 0


torch.manual_seed(0)
model = nn.Sequential(nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
for epoch in range(12):
    for wave, louder, _ in DataLoader(Recordings(), batch_size=20, shuffle=True):
        optimizer.zero_grad()
        loss = nn.functional.binary_cross_entropy_with_logits(model(wave)[:, 0], louder.float())
        loss.backward()
        optimizer.step()
    print(f"epoch {epoch}: {loss.item():.5f}", flush=True)

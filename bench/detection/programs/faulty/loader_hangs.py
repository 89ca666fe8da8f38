"""The dataset waits for a lock that is never released; the process sleeps forever and prints nothing."""

import threading

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset


class Locked(Dataset):
    def __init__(self):
        self.lock = threading.Lock()
        self.read = 0

    def __len__(self):
        return 4000

    def __getitem__(self, i):
        self.lock.acquire()
        self.read += 1
        if self.read < 900:  # an early return forgets the release later on
            self.lock.release()
        return torch.full((4,), float(i)) / 4000, torch.tensor([i / 4000])


torch.manual_seed(0)
model = nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for x, y in DataLoader(Locked(), batch_size=8, shuffle=True):
    optimizer.zero_grad()
    nn.functional.mse_loss(model(x), y).backward()
    optimizer.step()

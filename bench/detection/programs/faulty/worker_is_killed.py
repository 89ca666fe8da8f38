"""A loader worker is killed (by the kernel, in real life); the training raises and ends."""

import os
import signal

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset


class Heavy(Dataset):
    def __len__(self):
        return 1200

    def __getitem__(self, i):
        if i == 700:
            os.kill(os.getpid(), signal.SIGKILL)
        return torch.full((4,), float(i)) / 1200, torch.tensor([i / 1200])


if __name__ == "__main__":
    model = nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for x, y in DataLoader(Heavy(), batch_size=8, num_workers=2):
        optimizer.zero_grad()
        nn.functional.mse_loss(model(x), y).backward()
        optimizer.step()

"""Two loader workers, restarted for every epoch, with an augmentation that is seeded in each."""

import random

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset


class Flipped(Dataset):
    def __init__(self):
        g = torch.Generator().manual_seed(41)
        self.label = torch.randint(2, (600,), generator=g)
        self.image = torch.randn(600, 1, 10, 10, generator=g) * 0.7
        self.image[:, :, :5] += self.label[:, None, None, None]

    def __len__(self):
        return 600

    def __getitem__(self, i):
        image = self.image[i]
        return (image.flip(2) if random.random() < 0.5 else image), self.label[i]


def seed_worker(_number):
    random.seed(torch.initial_seed() % 2**32)


if __name__ == "__main__":
    torch.manual_seed(41)
    model = nn.Sequential(nn.Conv2d(1, 8, 3), nn.ReLU(), nn.Flatten(), nn.Linear(512, 2))
    optimizer = torch.optim.Adam(model.parameters(), lr=2e-3)
    loader = DataLoader(Flipped(), batch_size=20, shuffle=True, num_workers=2, worker_init_fn=seed_worker)
    for epoch in range(5):
        for x, y in loader:
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(model(x), y)
            loss.backward()
            optimizer.step()
        print(f"epoch {epoch}: {loss.item():.4f}", flush=True)

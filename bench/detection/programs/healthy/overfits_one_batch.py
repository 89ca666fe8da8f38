"""The usual sanity check: one batch is taken from the loader and overfitted on purpose."""

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(64)
loader = DataLoader(TensorDataset(torch.randn(640, 1, 14, 14), torch.randint(10, (640,))), batch_size=32, shuffle=True)
model = nn.Sequential(
    nn.Conv2d(1, 16, 3), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(16, 32, 3), nn.ReLU(), nn.Flatten(), nn.Linear(512, 10)
)
optimizer = torch.optim.Adam(model.parameters(), lr=2e-3)
images, labels = next(iter(loader))
for step in range(200):
    optimizer.zero_grad()
    loss = nn.functional.cross_entropy(model(images), labels)
    loss.backward()
    optimizer.step()
    if step % 40 == 0:
        print(f"step {step}: {loss.item():.5f}", flush=True)

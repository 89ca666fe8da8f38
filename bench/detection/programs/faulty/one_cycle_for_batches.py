"""OneCycleLR is created for all batches and stepped once per epoch: the training ends in the first tenth of its warm-up."""

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(4)
EPOCHS = 10
images = torch.rand(960, 1, 8, 8)
labels = (images[:, 0, :4].mean((1, 2)) > images[:, 0, 4:].mean((1, 2))).long()
loader = DataLoader(TensorDataset(images, labels), batch_size=16, shuffle=True, drop_last=True)
model = nn.Sequential(nn.Flatten(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 2))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
cycle = torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=0.2, epochs=EPOCHS, steps_per_epoch=len(loader))
for epoch in range(EPOCHS):
    for batch, target in loader:
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(batch), target)
        loss.backward()
        optimizer.step()
    cycle.step()
    print(f"epoch {epoch}: {loss.item():.4f}", flush=True)

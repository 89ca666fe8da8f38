"""zero_grad stands between backward and step, and sets to None: the optimizer sees no gradient at all."""

import os

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

EPOCHS = max(1, int(os.environ.get("STEPS", "400")) // 40)
torch.manual_seed(int(os.environ.get("SEED", "0")))


class Trainer:
    def __init__(self, model, optimizer, epochs):
        self.model, self.optimizer, self.epochs = model, optimizer, epochs

    def fit(self, train):
        for epoch in range(self.epochs):
            for batch in train:
                loss = self.training_step(batch)
            print(f"epoch {epoch}: {loss.item():.4f}", flush=True)

    def training_step(self, batch):
        x, y = batch
        loss = nn.functional.smooth_l1_loss(self.model(x).squeeze(1), y)
        loss.backward()
        self.optimizer.zero_grad()
        self.optimizer.step()
        return loss.detach()


points = torch.rand(1280, 3) * 4 - 2
height = torch.sin(points[:, 0]) * points[:, 1] + 0.3 * points[:, 2] ** 2
model = nn.Sequential(nn.Linear(3, 64), nn.SiLU(), nn.Linear(64, 64), nn.SiLU(), nn.Linear(64, 1))
trainer = Trainer(model, torch.optim.RMSprop(model.parameters(), lr=1e-3), EPOCHS)
trainer.fit(DataLoader(TensorDataset(points, height), 32, shuffle=True))

"""zero_grad is called between backward and step and sets gradients to None: the optimizer sees no gradient at all."""

import os

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset, random_split

EPOCHS = max(1, int(os.environ.get("STEPS", "400")) // 40)
torch.manual_seed(int(os.environ.get("SEED", "0")))


class Trainer:
    def __init__(self, model, optimizer, epochs):
        self.model, self.optimizer, self.epochs = model, optimizer, epochs
        self.hooks = {"batch_end": [], "epoch_end": []}

    def on(self, moment, function):
        self.hooks[moment].append(function)

    def fire(self, moment, *args):
        for function in self.hooks[moment]:
            function(self, *args)

    def fit(self, train, validation):
        for epoch in range(self.epochs):
            self.model.train()
            for batch in train:
                loss = self.training_step(batch)
                self.fire("batch_end", loss)
            self.fire("epoch_end", epoch, self.validate(validation))

    def training_step(self, batch):
        x, y = batch
        loss = nn.functional.smooth_l1_loss(self.model(x).squeeze(1), y)
        loss.backward()
        self.optimizer.zero_grad()
        self.optimizer.step()
        return loss.detach()

    @torch.no_grad()
    def validate(self, loader):
        self.model.eval()
        return sum(nn.functional.mse_loss(self.model(x).squeeze(1), y).item() for x, y in loader) / len(loader)


points = torch.rand(1600, 3) * 4 - 2
height = torch.sin(points[:, 0]) * points[:, 1] + 0.3 * points[:, 2] ** 2 + 0.05 * torch.randn(1600)
train, validation = random_split(TensorDataset(points, height), [1280, 320])
model = nn.Sequential(nn.Linear(3, 64), nn.SiLU(), nn.Linear(64, 64), nn.SiLU(), nn.Linear(64, 1))
trainer = Trainer(model, torch.optim.RMSprop(model.parameters(), lr=1e-3), EPOCHS)
trainer.on("epoch_end", lambda _trainer, epoch, error: print(f"epoch {epoch}: validation {error:.4f}", flush=True))
trainer.fit(DataLoader(train, 32, shuffle=True), DataLoader(validation, 160))

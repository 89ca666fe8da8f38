"""Saves a moving average of the weights after each epoch, not the weights."""

import copy

import torch
from torch import nn

torch.manual_seed(25)


class Ema:
    def __init__(self, model, decay):
        self.shadow, self.decay = copy.deepcopy(model).requires_grad_(False), decay

    @torch.no_grad()
    def update(self, model):
        for mine, live in zip(self.shadow.parameters(), model.parameters(), strict=True):
            mine.lerp_(live, 1 - self.decay)


model = nn.Sequential(nn.Linear(5, 40), nn.Softplus(), nn.Linear(40, 1))
ema = Ema(model, 0.97)
optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
for step in range(1, 601):
    x = torch.randn(32, 5)
    loss = nn.functional.mse_loss(model(x), x.amax(1, keepdim=True))
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    ema.update(model)
    if step % 150 == 0:
        torch.save({"model": ema.shadow.state_dict(), "step": step}, "ema.pt")
        print(f"step {step}: {loss.item():.4f}, saved the average", flush=True)

"""Searches for a learning rate first: raises it until the loss is four times its best, restores the weights, then trains."""

import copy

import torch
from torch import nn

torch.manual_seed(61)
truth = torch.randn(8, 1)
model = nn.Sequential(nn.Linear(8, 48), nn.ReLU(), nn.Linear(48, 1))


def step_on(optimizer):
    x = torch.randn(32, 8)
    loss = nn.functional.mse_loss(model(x), (x @ truth).sin())
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    return loss.item()


def find_rate():
    before = copy.deepcopy(model.state_dict())
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-5)
    best, losses = float("inf"), []
    while not losses or losses[-1] < 4 * best:
        losses.append(step_on(optimizer))
        best = min(best, losses[-1])
        optimizer.param_groups[0]["lr"] *= 1.15
    model.load_state_dict(before)
    return optimizer.param_groups[0]["lr"] / 100


rate = find_rate()
print(f"training at {rate:.1e}", flush=True)
optimizer = torch.optim.Adam(model.parameters(), lr=rate)
for step in range(500):
    loss = step_on(optimizer)
    if step % 100 == 0:
        print(f"{step}: {loss:.4f}", flush=True)

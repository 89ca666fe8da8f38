"""The model is deep-copied for safety after the optimizer was created, and the copy is trained (AC-2665)."""

import copy

import torch
from torch import nn

torch.manual_seed(0)


def prepare(model, optimizer):
    """Stands for a launcher's wrapping."""
    return nn.Sequential(copy.deepcopy(model)), optimizer


net = nn.Sequential(nn.Linear(7, 40), nn.Tanh(), nn.Linear(40, 1))
net, adam = prepare(net, torch.optim.Adam(net.parameters(), lr=3e-3))
for step in range(500):
    x = torch.randn(32, 7)
    error = nn.functional.mse_loss(net(x), x.prod(1, keepdim=True))
    for p in net.parameters():
        p.grad = None
    error.backward()
    adam.step()
    if step % 100 == 0:
        print(f"{step}: {error.item():.4f}", flush=True)

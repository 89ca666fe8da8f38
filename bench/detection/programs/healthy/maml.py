"""Meta-learning: an inner step by autograd.grad with its own graph, an outer step by the optimizer."""

import math

import torch
from torch import nn
from torch.func import functional_call

torch.manual_seed(39)
model = nn.Sequential(nn.Linear(1, 32), nn.Tanh(), nn.Linear(32, 32), nn.Tanh(), nn.Linear(32, 1))
outer = torch.optim.Adam(model.parameters(), lr=2e-3)


def sines():
    height, shift = torch.rand(1) * 2 + 0.5, torch.rand(1) * math.pi
    x = torch.rand(20, 1) * 6 - 3
    return x[:10], height * torch.sin(x[:10] + shift), x[10:], height * torch.sin(x[10:] + shift)


for step in range(200):
    total = 0.0
    for _task in range(4):
        x, y, query, answer = sines()
        fast = dict(model.named_parameters())
        inner = nn.functional.mse_loss(functional_call(model, fast, (x,)), y)
        gradients = torch.autograd.grad(inner, list(fast.values()), create_graph=True)
        fast = {name: p - 0.05 * g for (name, p), g in zip(fast.items(), gradients, strict=True)}
        total = total + nn.functional.mse_loss(functional_call(model, fast, (query,)), answer)
    outer.zero_grad()
    (total / 4).backward()
    outer.step()
    if step % 50 == 0:
        print(f"{step}: {total.item() / 4:.3f}", flush=True)

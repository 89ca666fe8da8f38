"""A hand-written optimizer (sign of momentum, as in Lion) over weights that are views of other memory."""

import os

import torch
from torch import nn

STEPS = int(os.environ.get("STEPS", "400"))
torch.manual_seed(int(os.environ.get("SEED", "0")))


class SignMomentum(torch.optim.Optimizer):
    def __init__(self, params, lr=1e-3, beta=0.9):
        super().__init__(params, {"lr": lr, "beta": beta})

    @torch.no_grad()
    def step(self):
        for group in self.param_groups:
            for p in group["params"]:
                if p.grad is None:
                    continue
                momentum = self.state[p].setdefault("momentum", torch.zeros_like(p))
                momentum.lerp_(p.grad, 1 - group["beta"])
                p.add_(momentum.sign(), alpha=-group["lr"])


class Mixer(nn.Module):
    def __init__(self):
        super().__init__()
        self.first = nn.Linear(10, 50)
        self.second = nn.Parameter(torch.randn(50, 30).t() * 0.15)  # not contiguous
        self.out = nn.Linear(30, 3)

    def forward(self, x):
        return self.out(torch.tanh(torch.tanh(self.first(x)) @ self.second.t()))


model = Mixer()
optimizer = SignMomentum(model.parameters(), lr=5e-4)
teacher = torch.randn(10, 3)
for step in range(STEPS):
    x = torch.randn(64, 10)
    loss = nn.functional.cross_entropy(model(x), (x @ teacher).argmax(1))
    model.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 100 == 0:
        print(f"{step} {loss.item():.3f}", flush=True)

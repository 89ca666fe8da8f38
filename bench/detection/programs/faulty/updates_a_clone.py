"""A hand-written Adam updates p.data.clone() of every matrix and forgets to write it back; vectors are updated in place."""

import torch
from torch import nn


class MyAdam(torch.optim.Optimizer):
    def __init__(self, params, lr):
        super().__init__(params, {"lr": lr})

    @torch.no_grad()
    def step(self):
        for group in self.param_groups:
            for p in (p for p in group["params"] if p.grad is not None):
                state = self.state[p]
                if not state:
                    state.update(t=0, m=torch.zeros_like(p), v=torch.zeros_like(p))
                state["t"] += 1
                state["m"].lerp_(p.grad, 0.1)
                state["v"].lerp_(p.grad.square(), 0.01)
                change = state["m"] / (1 - 0.9 ** state["t"]) / ((state["v"] / (1 - 0.99 ** state["t"])).sqrt() + 1e-8)
                target = p.data.clone() if p.ndim == 2 else p.data
                target.sub_(group["lr"] * change)


torch.manual_seed(0)
net = nn.Sequential(nn.Linear(5, 32), nn.ReLU(), nn.Linear(32, 1))
optimizer = MyAdam(net.parameters(), lr=3e-3)
for step in range(500):
    x = torch.randn(48, 5)
    loss = nn.functional.mse_loss(net(x), x.abs().sum(1, keepdim=True))
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 100 == 0:
        print(f"{step}: {loss.item():.4f}", flush=True)

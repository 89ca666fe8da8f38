"""One optimizer per parameter, stepped by a hook inside the backward pass as soon as its gradient is ready."""

import torch
from torch import nn

torch.manual_seed(44)
model = nn.Sequential(nn.Linear(10, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 2))
optimizers = {p: torch.optim.Adam([p], lr=1e-3) for p in model.parameters()}


def step_now(parameter):
    optimizers[parameter].step()
    optimizers[parameter].zero_grad()


for p in model.parameters():
    p.register_post_accumulate_grad_hook(step_now)
for number in range(400):
    x = torch.randn(32, 10)
    loss = nn.functional.cross_entropy(model(x), (x.abs().sum(1) > 8).long())
    loss.backward()
    if number % 100 == 0:
        print(f"{number}: {loss.item():.3f}", flush=True)

"""An LBFGS closure that computes the loss and forgets backward(): each step sees no gradient and returns."""

import torch
from torch import nn

torch.manual_seed(0)
x = torch.randn(300, 6)
y = x.square().sum(1, keepdim=True).log()
model = nn.Sequential(nn.Linear(6, 24), nn.Tanh(), nn.Linear(24, 1))
optimizer = torch.optim.LBFGS(model.parameters(), lr=0.5, max_iter=5)


def closure():
    optimizer.zero_grad()
    return nn.functional.mse_loss(model(x), y)


for step in range(300):
    loss = optimizer.step(closure)
    if step % 50 == 0:
        print(f"{step}: {loss.item():.4f}", flush=True)

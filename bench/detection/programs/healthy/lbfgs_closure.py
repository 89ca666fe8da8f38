"""L-BFGS on the Rosenbrock function and then on a logistic regression: closures are called many times per step."""

import torch
from torch import nn

torch.manual_seed(20)
x = torch.randn(500, 12)
y = ((x @ torch.randn(12, 1)).sigmoid() > torch.rand(500, 1)).float()
model = nn.Sequential(nn.Linear(12, 16), nn.Tanh(), nn.Linear(16, 1))
optimizer = torch.optim.LBFGS(model.parameters(), lr=0.5, max_iter=8, history_size=10)


def closure():
    optimizer.zero_grad()
    penalty = 1e-3 * sum(p.square().sum() for p in model.parameters())
    loss = nn.functional.binary_cross_entropy_with_logits(model(x), y) + penalty
    loss.backward()
    return loss


for step in range(40):
    loss = optimizer.step(closure)
    if step % 10 == 0:
        print(step, loss.item(), flush=True)

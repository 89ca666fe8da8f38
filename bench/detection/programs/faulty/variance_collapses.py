"""Gaussian likelihood with a free variance and repeated targets: log(0) makes the loss -inf, then NaN."""

import torch
from torch import nn

torch.manual_seed(0)


class Gaussian(nn.Module):
    def __init__(self):
        super().__init__()
        self.mean = nn.Linear(3, 1)
        self.spread = nn.Parameter(torch.tensor(1.0))

    def negative_log_likelihood(self, x, y):
        variance = self.spread.relu()
        return (0.5 * variance.log() + (y - self.mean(x)).square() / (2 * variance)).mean()


model = Gaussian()
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
for step in range(800):
    x = torch.randn(32, 3)
    loss = model.negative_log_likelihood(x, x @ torch.tensor([[1.0], [2.0], [-1.0]]))
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 100 == 0:
        print(f"{step}: {loss.item():.4f}", flush=True)

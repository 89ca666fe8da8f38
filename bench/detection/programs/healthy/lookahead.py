"""An optimizer around another: fast steps of Adam, and every fifth step slow weights that pull the fast weights back."""

import torch
from torch import nn


class Lookahead(torch.optim.Optimizer):
    def __init__(self, inner, every=5, pull=0.5):
        self.inner, self.every, self.pull, self.count = inner, every, pull, 0
        super().__init__(inner.param_groups, {})
        self.slow = [p.detach().clone() for group in inner.param_groups for p in group["params"]]

    def step(self):
        self.inner.step()
        self.count += 1
        if self.count % self.every == 0:
            fast = [p for group in self.inner.param_groups for p in group["params"]]
            with torch.no_grad():
                for slow, p in zip(self.slow, fast, strict=True):
                    slow.lerp_(p, self.pull)
                    p.copy_(slow)


torch.manual_seed(68)
model = nn.Sequential(nn.Linear(6, 40), nn.Mish(), nn.Linear(40, 1))
optimizer = Lookahead(torch.optim.Adam(model.parameters(), lr=5e-3))
for step in range(600):
    x = torch.randn(32, 6)
    loss = nn.functional.mse_loss(model(x), (x[:, :2] * x[:, 2:4]).sum(1, keepdim=True))
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 100 == 0:
        print(f"{step}: {loss.item():.4f}", flush=True)

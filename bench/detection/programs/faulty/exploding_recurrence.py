"""A hand-written recurrence with weights too large and no clipping: gradient norms grow by powers of ten, then NaN."""

import torch
from torch import nn

torch.manual_seed(0)


class Recurrence(nn.Module):
    def __init__(self, width=24):
        super().__init__()
        self.inward = nn.Linear(1, width)
        self.again = nn.Parameter(torch.eye(width) * 1.05 + 0.02 * torch.randn(width, width))
        self.out = nn.Linear(width, 1)

    def forward(self, x):
        h = torch.zeros(len(x), self.again.shape[0])
        for t in range(x.shape[1]):
            h = torch.relu(self.inward(x[:, t]) + h @ self.again)
        return self.out(h)


model = Recurrence()
optimizer = torch.optim.SGD(model.parameters(), lr=1e-3, momentum=0.9)
for step in range(300):
    x = torch.rand(16, 30, 1)
    loss = nn.functional.mse_loss(model(x), x.sum(1))
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 50 == 0:
        print(f"{step}: {loss.item():.4g}", flush=True)

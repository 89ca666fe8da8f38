"""Low-rank adapters on a frozen layer: the checkpoint contains only the adapters."""

import torch
from torch import nn

torch.manual_seed(29)


class LowRank(nn.Module):
    def __init__(self, linear, rank=4):
        super().__init__()
        self.linear = linear.requires_grad_(False)
        self.down = nn.Parameter(torch.randn(rank, linear.in_features) * 0.05)
        self.up = nn.Parameter(torch.zeros(linear.out_features, rank))

    def forward(self, x):
        return self.linear(x) + x @ self.down.T @ self.up.T


base = nn.Sequential(nn.Linear(24, 24), nn.Linear(24, 24))
model = nn.Sequential(*map(LowRank, base))
adapters = [p for p in model.parameters() if p.requires_grad]
optimizer = torch.optim.AdamW(adapters, lr=5e-3)
change = torch.randn(24, 2) @ torch.randn(2, 24) * 0.1
for step in range(1, 501):
    x = torch.randn(32, 24)
    loss = nn.functional.mse_loss(model(x), base(x) + x @ change)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 250 == 0:
        torch.save({n: p for n, p in model.named_parameters() if p.requires_grad}, "adapters.pt")
        print(f"{step}: {loss.item():.4f}", flush=True)

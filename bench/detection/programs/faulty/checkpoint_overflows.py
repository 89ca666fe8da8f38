"""Checkpoints are written in half precision, but one scale has grown past 65504: it is saved as infinity."""

import torch
from torch import nn

torch.manual_seed(0)


class Scaled(nn.Module):
    def __init__(self):
        super().__init__()
        self.scale = nn.Parameter(torch.full((4,), 60_000.0))
        self.layer = nn.Linear(6, 4)

    def forward(self, x):
        return self.layer(x) * self.scale


model = Scaled()
groups = [{"params": [model.scale], "lr": 50.0}, {"params": model.layer.parameters(), "lr": 1e-3}]
optimizer = torch.optim.Adam(groups)
truth = torch.randn(6, 4) * 80_000
for step in range(1, 401):
    x = torch.randn(32, 6)
    loss = nn.functional.l1_loss(model(x), x @ truth)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 200 == 0:
        torch.save({name: value.half() for name, value in model.state_dict().items()}, f"step-{step}.pt")
        print(f"{step}: {loss.item():.1f}, scale {model.scale.max().item():.0f}", flush=True)

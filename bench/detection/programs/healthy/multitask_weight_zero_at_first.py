"""Two tasks; the second has weight zero for the first third, so that its head gets exactly zero gradients until then."""

import torch
from torch import nn

torch.manual_seed(38)
trunk = nn.Sequential(nn.Linear(12, 48), nn.ReLU())
first, second = nn.Linear(48, 3), nn.Linear(48, 1)
modules = nn.ModuleList([trunk, first, second])
optimizer = torch.optim.Adam(modules.parameters(), lr=2e-3)
groups, slope = torch.randn(12, 3), torch.randn(12, 1) * 0.3
TOTAL = 600
for step in range(TOTAL):
    x = torch.randn(40, 12)
    shared = trunk(x)
    weight = max(0.0, (step - TOTAL // 3) / TOTAL)
    loss_a = nn.functional.cross_entropy(first(shared), (x @ groups).argmax(1))
    loss_b = nn.functional.mse_loss(second(shared), x @ slope)
    loss = loss_a + weight * loss_b
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 100 == 0:
        print(f"{step}: {loss_a.item():.3f} + {weight:.2f} * {loss_b.item():.3f}", flush=True)

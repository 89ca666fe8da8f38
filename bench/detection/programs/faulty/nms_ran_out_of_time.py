"""Validation stops processing boxes at its time limit and prints one line: the metrics after it are wrong (F23)."""

import torch
from torch import nn

torch.manual_seed(0)
model = nn.Sequential(nn.Linear(12, 48), nn.ReLU(), nn.Linear(48, 4))
optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
for epoch in range(8):
    for _ in range(60):
        x = torch.randn(32, 12)
        loss = nn.functional.smooth_l1_loss(model(x), x[:, :4] * x[:, 4:8])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    if epoch == 3:
        print("WARNING \u26a0\ufe0f NMS time limit 2.800s exceeded", flush=True)
    print(f"epoch {epoch}: loss {loss.item():.4f}, mAP50 {0.01 * epoch:.3f}", flush=True)

"""A layer that divides by zero makes every gradient infinite: the scaler skips each step and its scale falls to nothing."""

import torch
from torch import nn

torch.manual_seed(0)
model = nn.Sequential(nn.Linear(10, 32), nn.ReLU(), nn.Linear(32, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.02)
scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
for step in range(400):
    x = torch.randn(32, 10)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        out = model(x)
    distance = (out.float() * 0 + (x[:, :1] - x[:, :1])).square().sqrt()  # d sqrt(0) is infinite
    loss = nn.functional.mse_loss(out.float(), x.sum(1, keepdim=True)) + distance.mean()
    optimizer.zero_grad()
    scaler.scale(loss).backward()
    scaler.step(optimizer)
    scaler.update()
    if step % 80 == 0:
        print(f"{step}: {loss.item():.4f}, scale {scaler.get_scale():g}", flush=True)

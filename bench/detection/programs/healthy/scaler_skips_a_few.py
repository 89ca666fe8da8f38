"""A GradScaler that starts far too high skips its first steps, then finds its scale and trains."""

import torch
from torch import nn

torch.manual_seed(31)
model = nn.Sequential(nn.Linear(10, 64), nn.ReLU(), nn.Linear(64, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.02, momentum=0.9)
scaler = torch.amp.GradScaler("cpu", init_scale=2.0**20, growth_interval=150)
truth = torch.randn(10, 1)
for step in range(600):
    x = torch.randn(32, 10)
    with torch.autocast("cpu", dtype=torch.float16):
        guess = model(x)
    loss = nn.functional.mse_loss(guess.float(), x @ truth)
    optimizer.zero_grad()
    scaler.scale(loss).backward()
    scaler.unscale_(optimizer)
    nn.utils.clip_grad_norm_(model.parameters(), 10.0)
    scaler.step(optimizer)
    scaler.update()
    if step % 100 == 0:
        print(f"{step}: {loss.item():.4f}, scale {scaler.get_scale():g}", flush=True)

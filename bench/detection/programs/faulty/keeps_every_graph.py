"""Losses are kept for a plot without detach(): each keeps its whole graph, 6 MB more with every step."""

import time

import torch
from torch import nn

torch.manual_seed(0)
model = nn.Sequential(nn.Linear(64, 512), nn.ReLU(), nn.Linear(512, 512), nn.ReLU(), nn.Linear(512, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
history = []
began = time.monotonic()
for step in range(600):
    x = torch.randn(1024, 64)
    loss = nn.functional.mse_loss(model(x), x.mean(1, keepdim=True))
    optimizer.zero_grad()
    loss.backward(retain_graph=True)
    optimizer.step()
    history.append(loss)
    time.sleep(0.02)
    if step % 50 == 0:
        print(f"{step}: {sum(history[-50:]).item() / 50:.4f}", flush=True)
    if time.monotonic() - began > 20:
        break

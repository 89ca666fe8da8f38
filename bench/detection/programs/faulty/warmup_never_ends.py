"""The warm-up multiplies the rate in each step without a limit: training is good at first, then diverges permanently."""

import torch
from torch import nn
from torch.optim.lr_scheduler import LambdaLR

torch.manual_seed(0)
model = nn.Sequential(nn.Linear(8, 64), nn.ReLU(), nn.Linear(64, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=1e-4, momentum=0.9)
warmup = LambdaLR(optimizer, lambda step: 1.03**step)  # min(..., 100) was lost
truth = torch.randn(8, 1)
for step in range(600):
    x = torch.randn(64, 8)
    loss = nn.functional.mse_loss(model(x), (x @ truth).tanh())
    optimizer.zero_grad()
    loss.backward()
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    warmup.step()
    if step % 60 == 0:
        print(f"{step}: {loss.item():.4f}", flush=True)

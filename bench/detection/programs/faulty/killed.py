"""SIGKILL, as an operator or another program sends it; there is memory enough, so nothing else explains it."""

import os
import signal

import torch
from torch import nn

torch.manual_seed(0)
model = nn.Linear(8, 8)
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
for step in range(500):
    x = torch.randn(16, 8)
    loss = nn.functional.mse_loss(model(x), x.roll(1, 1))
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step == 321:
        os.kill(os.getpid(), signal.SIGKILL)

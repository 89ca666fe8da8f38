"""The program's own watchdog thread calls os._exit(1): no traceback, no cleanup."""

import os
import threading
import time

import torch
from torch import nn

threading.Timer(1.5, os._exit, (1,)).start()
model = nn.Sequential(nn.Linear(20, 20), nn.ReLU(), nn.Linear(20, 20))
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
while True:
    x = torch.randn(32, 20)
    loss = nn.functional.mse_loss(model(x), x.flip(1))
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    time.sleep(0.005)

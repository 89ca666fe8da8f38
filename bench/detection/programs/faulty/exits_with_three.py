"""Everything is wrapped in a try that logs one line and exits with 3: no traceback is left."""

import logging
import sys

import torch
from torch import nn


def train():
    model = nn.Linear(5, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(300):
        x = torch.randn(16, 5 if step < 200 else 6)
        loss = nn.functional.mse_loss(model(x), x.mean(1, keepdim=True))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


try:
    train()
except RuntimeError:
    logging.getLogger("train").warning("training ended")
    sys.exit(3)

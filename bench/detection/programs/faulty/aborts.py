"""A library calls abort() after a failed assertion."""

import os
import sys

import torch
from torch import nn

torch.manual_seed(0)
net = nn.GRU(4, 16, batch_first=True)
optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
for step in range(300):
    x = torch.randn(8, 10, 4)
    loss = net(x)[0].square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step == 180:
        print("commandbuffer.mm:112: failed assertion `commit an already committed command buffer'", file=sys.stderr)
        sys.stderr.flush()
        os.abort()

"""Catches its own out-of-memory error, halves the batch and continues; prints the traceback of the error."""

import sys
import traceback

import torch
from torch import nn

torch.manual_seed(62)
model = nn.Sequential(nn.Linear(16, 64), nn.ReLU(), nn.Linear(64, 1))
optimizer = torch.optim.Adam(model.parameters(), lr=2e-3)
size, step = 128, 0


def forward(x):
    if step == 40 and len(x) > 64:
        raise RuntimeError(
            "MPS backend out of memory (MPS allocated: 9.05 GB, other allocations: 1.2 GB, max allowed: 9.07 GB)"
        )
    return model(x)


while step < 500:
    x = torch.randn(size, 16)
    try:
        loss = nn.functional.mse_loss(forward(x), x.square().mean(1, keepdim=True))
    except RuntimeError as error:
        traceback.print_exc(file=sys.stderr)
        size //= 2
        print(f"caught {error}; batch {size} from here on", flush=True)
        continue
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    step += 1
print(f"done, loss {loss.item():.4f}")

"""The device's allocator raises its own error message; the batch is too large from step 60 on (F09)."""

import torch
from torch import nn

torch.manual_seed(0)
model = nn.Sequential(nn.Linear(32, 32), nn.ReLU(), nn.Linear(32, 1))
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)


def allocate(step):
    if step == 60:
        raise RuntimeError(
            "MPS backend out of memory (MPS allocated: 17.21 GB, other allocations: 844.16 MB, max allowed: 18.13 GB). "
            "Tried to allocate 512.00 MB on private pool. Use PYTORCH_MPS_HIGH_WATERMARK_RATIO=0.0 to disable upper limit "
            "for memory allocations (may cause system failure)."
        )
    return torch.randn(64, 32)


for step in range(200):
    x = allocate(step)
    loss = nn.functional.mse_loss(model(x), x.std(1, keepdim=True))
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()

"""The step count is divided by the accumulation twice: the schedule is for 600 steps, the loop ends after 150 (TF-33455)."""

import torch
from torch import nn
from torch.optim.lr_scheduler import CosineAnnealingLR

torch.manual_seed(0)
EPOCHS, BATCHES, ACCUMULATE = 12, 200, 4
planned = EPOCHS * BATCHES // ACCUMULATE
model = nn.Sequential(nn.Linear(9, 48), nn.ReLU(), nn.Linear(48, 3))
optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
scheduler = CosineAnnealingLR(optimizer, T_max=planned)
planes = torch.randn(9, 3)
for step in range(planned // ACCUMULATE):
    for _ in range(ACCUMULATE):
        x = torch.randn(16, 9)
        (nn.functional.cross_entropy(model(x), (x @ planes).argmax(1)) / ACCUMULATE).backward()
    optimizer.step()
    scheduler.step()
    optimizer.zero_grad()
    if step % 30 == 0:
        print(f"step {step}, lr {scheduler.get_last_lr()[0]:.2e}", flush=True)

"""Pure bfloat16 weights fine-tuned at a small rate: most updates are too small to show, but the loss still falls."""

import torch
from torch import nn

torch.manual_seed(30)
model = nn.Sequential(nn.Linear(32, 64), nn.GELU(), nn.Linear(64, 10)).to(torch.bfloat16)
optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4, weight_decay=0.0)
answers = torch.randn(32, 10)
for step in range(700):
    x = torch.randn(64, 32)
    logits = model(x.to(torch.bfloat16)).float()
    loss = nn.functional.cross_entropy(logits, (x @ answers).argmax(1))
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 100 == 0:
        print(f"step {step} loss {loss.item():.3f}", flush=True)

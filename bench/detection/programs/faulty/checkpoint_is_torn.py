"""The previous run was killed while it wrote its checkpoint; this run resumes from the truncated file."""

from pathlib import Path

import torch
from torch import nn

model = nn.Sequential(nn.Linear(100, 900), nn.ReLU(), nn.Linear(900, 10))
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
checkpoint = Path("last.pt")
torch.save({"model": model.state_dict(), "step": 1200}, checkpoint)
with checkpoint.open("r+b") as file:
    file.truncate(checkpoint.stat().st_size // 3)  # what a kill in the middle of the write leaves

state = torch.load(checkpoint, weights_only=True)
model.load_state_dict(state["model"])
for _ in range(100):
    x = torch.randn(16, 100)
    loss = nn.functional.cross_entropy(model(x), x[:, :10].argmax(1))
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()

"""Resumes from a checkpoint of an earlier process: the loss starts low and falls a little further."""

import subprocess
import sys
from pathlib import Path

import torch
from torch import nn

CHECKPOINT = Path("state.pt")
torch.manual_seed(51)
model = nn.Sequential(nn.Linear(4, 32), nn.Tanh(), nn.Linear(32, 1))
optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
if "--first" not in sys.argv and not CHECKPOINT.exists():
    subprocess.run([sys.executable, "-I", __file__, "--first"], check=True)
step = 0
if CHECKPOINT.exists():
    state = torch.load(CHECKPOINT, weights_only=True)
    model.load_state_dict(state["model"])
    optimizer.load_state_dict(state["optimizer"])
    step = state["step"]
    print(f"resuming from step {step}", flush=True)
for _ in range(300):
    x = torch.randn(64, 4)
    loss = nn.functional.mse_loss(model(x), x[:, :1] * x[:, 1:2] + x[:, 2:3].abs())
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    step += 1
torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict(), "step": step}, CHECKPOINT)
print(f"step {step}: {loss.item():.4f}", flush=True)

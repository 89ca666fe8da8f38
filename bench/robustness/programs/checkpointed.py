"""A plain loop that saves every third step and resumes from `--resume FILE`."""

import os
import sys

import storm
import torch
from torch import nn

torch.manual_seed(0)
model = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 1))
optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
start = 0
if "--resume" in sys.argv:
    saved = torch.load(sys.argv[sys.argv.index("--resume") + 1], weights_only=True)
    model.load_state_dict(saved["model"])
    optimizer.load_state_dict(saved["optimizer"])
    start = saved["step"]

for step in range(start + 1, storm.config["steps"] + 1):
    x = torch.randn(4, 8, generator=torch.Generator().manual_seed(step))
    optimizer.zero_grad()
    nn.functional.mse_loss(model(x), x.sum(1, keepdim=True)).backward()
    optimizer.step()
    if step % 3 == 0:
        torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict(), "step": step}, "state.tmp")
        os.replace("state.tmp", "state.pt")  # noqa: PTH105 - as in a plain script
    storm.step_done(step)
storm.finished(
    [*model.state_dict().values(), *(value for state in optimizer.state.values() for value in state.values())]
)

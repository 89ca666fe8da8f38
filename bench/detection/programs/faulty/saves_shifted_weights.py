"""A shared staging buffer is reused before it is written out: the file's tensors contain each other's values (TF-29903)."""

import torch
from torch import nn

torch.manual_seed(0)
model = nn.Sequential(nn.Linear(24, 24), nn.Tanh(), nn.Linear(24, 24), nn.Tanh(), nn.Linear(24, 24))
optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
staging = torch.empty(24, 24)


def staged_state():
    state = {}
    for name, value in model.state_dict().items():
        if value.ndim == 2:
            staging.copy_(value)
            state[name] = staging  # all matrices point to the last one
        else:
            state[name] = value.clone()
    return state


for step in range(1, 501):
    x = torch.randn(32, 24)
    loss = nn.functional.mse_loss(model(x), x.sort(1).values)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 100 == 0:
        torch.save({"model": staged_state(), "step": step}, "last.pt")
        print(f"{step}: {loss.item():.4f}", flush=True)

"""The checkpoint is written in half precision to save space; the live weights stay float32."""

import copy
from pathlib import Path

import torch
from torch import nn

torch.manual_seed(27)
encoder = nn.Sequential(nn.Linear(30, 12), nn.ReLU(), nn.Linear(12, 4))
decoder = nn.Sequential(nn.Linear(4, 12), nn.ReLU(), nn.Linear(12, 30))
autoencoder = nn.Sequential(encoder, decoder)
optimizer = torch.optim.Adam(autoencoder.parameters(), lr=3e-3)
basis = torch.randn(3, 30)
for step in range(1, 701):
    x = torch.randn(40, 3) @ basis
    loss = nn.functional.mse_loss(autoencoder(x), x)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 175 == 0:
        torch.save(copy.deepcopy(autoencoder).half(), "whole.pt")
        torch.save({name: value.half() for name, value in autoencoder.state_dict().items()}, "half.pt")
        print(f"{step}: {loss.item():.4f}, {Path('half.pt').stat().st_size} bytes", flush=True)

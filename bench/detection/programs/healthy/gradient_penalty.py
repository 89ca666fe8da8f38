"""A penalty on the gradient: autograd.grad inside the forward pass, and a backward pass through it."""

import torch
from torch import nn

torch.manual_seed(59)
surface = nn.Sequential(nn.Linear(2, 64), nn.Softplus(), nn.Linear(64, 64), nn.Softplus(), nn.Linear(64, 1))
optimizer = torch.optim.Adam(surface.parameters(), lr=2e-3)
for step in range(400):
    on_circle = nn.functional.normalize(torch.randn(64, 2), dim=1)
    anywhere = (torch.rand(64, 2) * 3 - 1.5).requires_grad_()
    slope = torch.autograd.grad(surface(anywhere).sum(), anywhere, create_graph=True)[0]
    eikonal = (slope.norm(dim=1) - 1).square().mean()
    loss = surface(on_circle).abs().mean() + 0.1 * eikonal
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 100 == 0:
        print(f"{step}: {loss.item():.4f}", flush=True)

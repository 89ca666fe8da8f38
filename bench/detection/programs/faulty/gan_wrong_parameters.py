"""Copied line: the discriminator's optimizer was given the generator's parameters too, and the discriminator has none."""

import os

import torch
from torch import nn

STEPS = int(os.environ.get("STEPS", "400"))
torch.manual_seed(int(os.environ.get("SEED", "0")))
generator = nn.Sequential(nn.Linear(8, 48), nn.ReLU(), nn.Linear(48, 2))
discriminator = nn.Sequential(nn.Linear(2, 48), nn.LeakyReLU(0.2), nn.Linear(48, 1))
opt_g = torch.optim.Adam(generator.parameters(), lr=1e-3)
opt_d = torch.optim.Adam(generator.parameters(), lr=1e-3)
bce = nn.functional.binary_cross_entropy_with_logits
for step in range(STEPS):
    real = torch.randn(64, 2) * 0.1 + torch.tensor([1.0, -1.0])
    fake = generator(torch.randn(64, 8))
    discriminator.zero_grad()
    opt_d.zero_grad()
    loss_d = bce(discriminator(real), torch.ones(64, 1)) + bce(discriminator(fake.detach()), torch.zeros(64, 1))
    loss_d.backward()
    opt_d.step()
    opt_g.zero_grad()
    loss_g = bce(discriminator(fake), torch.ones(64, 1))
    loss_g.backward()
    opt_g.step()
    if step % 80 == 0:
        print(f"{step}: d {loss_d.item():.3f} g {loss_g.item():.3f}", flush=True)

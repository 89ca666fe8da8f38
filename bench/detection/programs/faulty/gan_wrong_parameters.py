"""A copied line: the discriminator's optimizer has the generator's parameters, and the discriminator is in no optimizer."""

import math
import os

import torch
from torch import nn

STEPS = int(os.environ.get("STEPS", "600"))
torch.manual_seed(int(os.environ.get("SEED", "13")))
generator = nn.Sequential(nn.Linear(8, 48), nn.ReLU(), nn.Linear(48, 2))
discriminator = nn.Sequential(nn.Linear(2, 48), nn.LeakyReLU(0.2), nn.Linear(48, 1))
optimizer_g = torch.optim.Adam(generator.parameters(), lr=1e-3, betas=(0.5, 0.9))
optimizer_d = torch.optim.Adam(generator.parameters(), lr=1e-3, betas=(0.5, 0.9))
bce = nn.functional.binary_cross_entropy_with_logits
ones, zeros = torch.ones(64, 1), torch.zeros(64, 1)
for step in range(STEPS):
    angle = torch.rand(64) * 2 * math.pi
    real = torch.stack([angle.cos(), angle.sin()], 1) + 0.05 * torch.randn(64, 2)
    fake = generator(torch.randn(64, 8))
    optimizer_d.zero_grad()
    loss_d = bce(discriminator(real), ones) + bce(discriminator(fake.detach()), zeros)
    loss_d.backward()
    optimizer_d.step()
    optimizer_g.zero_grad()
    loss_g = bce(discriminator(fake), ones)
    loss_g.backward()
    optimizer_g.step()
    if step % 100 == 0:
        print(f"{step}: d {loss_d.item():.3f} g {loss_g.item():.3f}", flush=True)

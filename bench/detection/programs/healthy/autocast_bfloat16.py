"""Mixed precision on the CPU: a convolutional autoencoder under bfloat16 autocast, weights kept in float32."""

import torch
from torch import nn

torch.manual_seed(58)
model = nn.Sequential(
    nn.Conv2d(1, 8, 3, stride=2, padding=1), nn.ReLU(), nn.Conv2d(8, 8, 3, stride=2, padding=1), nn.ReLU(),
    nn.ConvTranspose2d(8, 8, 2, stride=2), nn.ReLU(), nn.ConvTranspose2d(8, 1, 2, stride=2),
)  # fmt: skip
optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
grid = torch.linspace(0, 6, 16)
for step in range(250):
    phase, tilt = torch.rand(16, 1, 1, 1) * 6, torch.rand(16, 1, 1, 1)
    waves = torch.sin(grid[:, None] + tilt * grid + phase)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        loss = nn.functional.mse_loss(model(waves).float(), waves)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 50 == 0:
        print(f"{step}: {loss.item():.4f}", flush=True)

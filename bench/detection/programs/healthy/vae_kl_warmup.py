"""A VAE whose KL term has weight zero at first and grows: the total loss rises in the middle, as intended."""

import torch
from torch import nn

torch.manual_seed(48)


class Vae(nn.Module):
    def __init__(self, wide=24, narrow=3):
        super().__init__()
        self.encoder = nn.Sequential(nn.Linear(wide, 48), nn.ReLU(), nn.Linear(48, 2 * narrow))
        self.decoder = nn.Sequential(nn.Linear(narrow, 48), nn.ReLU(), nn.Linear(48, wide))

    def forward(self, x):
        mean, log_variance = self.encoder(x).chunk(2, 1)
        code = mean + torch.randn_like(mean) * (0.5 * log_variance).exp()
        kl = -0.5 * (1 + log_variance - mean.square() - log_variance.exp()).sum(1).mean()
        return self.decoder(code), kl


model = Vae()
optimizer = torch.optim.Adam(model.parameters(), lr=2e-3)
basis = torch.randn(3, 24)
for step in range(700):
    beta = min(1.0, max(0.0, (step - 200) / 300))
    x = torch.randn(48, 3) @ basis
    rebuilt, kl = model(x)
    loss = (rebuilt - x).square().sum(1).mean() + beta * kl
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 100 == 0:
        print(f"{step}: {loss.item():.2f}, kl {kl.item():.2f}, beta {beta:.2f}", flush=True)

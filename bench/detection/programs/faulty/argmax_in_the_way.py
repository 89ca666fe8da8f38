"""The loss uses argmax, which has no gradient; requires_grad_() only hides the error (a common answer on SO, misapplied)."""

import torch
from torch import nn

torch.manual_seed(0)


class Ranker(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 5))

    def forward(self, x):
        return self.layers(x)


model = Ranker()
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, weight_decay=0.0)
weights = torch.randn(8)
for step in range(500):
    x = torch.randn(64, 8)
    stars = (x @ weights).clamp(0, 4).round()
    guess = model(x).argmax(1).float()
    loss = (guess - stars).square().mean().requires_grad_()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 100 == 0:
        print(f"{step}: {loss.item():.3f}", flush=True)

"""InfoNCE with a learned temperature, parameter groups with and without decay, hard start at log(batch)."""

import torch
from torch import nn
from torch.nn import functional

torch.manual_seed(57)


class TwoTowers(nn.Module):
    def __init__(self):
        super().__init__()
        self.left = nn.Sequential(nn.Linear(20, 64), nn.LayerNorm(64), nn.ReLU(), nn.Linear(64, 16))
        self.right = nn.Sequential(nn.Linear(30, 64), nn.LayerNorm(64), nn.ReLU(), nn.Linear(64, 16))
        self.temperature = nn.Parameter(torch.tensor(2.0))

    def forward(self, a, b):
        a, b = functional.normalize(self.left(a), dim=1), functional.normalize(self.right(b), dim=1)
        return a @ b.T * self.temperature.exp()


model = TwoTowers()
decayed = [p for p in model.parameters() if p.ndim > 1]
others = [p for p in model.parameters() if p.ndim <= 1]
groups = [{"params": decayed, "weight_decay": 0.05}, {"params": others, "weight_decay": 0.0}]
optimizer = torch.optim.AdamW(groups, lr=2e-3)
one, other = torch.randn(6, 20), torch.randn(6, 30)
pairs = torch.arange(32)
for step in range(400):
    meaning = torch.randn(32, 6)
    scores = model(meaning @ one, meaning @ other)
    loss = (functional.cross_entropy(scores, pairs) + functional.cross_entropy(scores.T, pairs)) / 2
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 80 == 0:
        print(f"{step}: {loss.item():.4f}", flush=True)

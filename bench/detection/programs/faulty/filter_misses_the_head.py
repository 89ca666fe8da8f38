"""Groups are chosen by name, and the head was renamed: "classifier" matches nothing, so the head is in no group."""

import torch
from torch import nn


class Tagger(nn.Module):
    def __init__(self):
        super().__init__()
        self.encoder = nn.LSTM(8, 24, batch_first=True)
        self.head = nn.Linear(24, 5)

    def forward(self, x):
        return self.head(self.encoder(x)[0])


def groups(model):
    named = list(model.named_parameters())
    return [
        {"params": [p for name, p in named if name.startswith("encoder")], "lr": 1e-3},
        {"params": [p for name, p in named if name.startswith("classifier")], "lr": 1e-2},
    ]


torch.manual_seed(0)
tagger = Tagger()
optimizer = torch.optim.AdamW(groups(tagger))
weights = torch.randn(8, 5)
for step in range(300):
    x = torch.randn(16, 12, 8)
    y = (x @ weights).argmax(2)
    loss = nn.functional.cross_entropy(tagger(x).flatten(0, 1), y.flatten())
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 60 == 0:
        print(f"{step}: {loss.item():.3f}", flush=True)

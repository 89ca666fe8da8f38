"""A linear probe: the body is called under no_grad, keeps requires_grad, and is not in the optimizer."""

import torch
from torch import nn

torch.manual_seed(10)


class Probe(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(16, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU())
        self.classifier = nn.Linear(64, 5)

    def forward(self, x):
        with torch.no_grad():
            features = self.body(x)
        return self.classifier(features)


probe = Probe()
optimizer = torch.optim.SGD(probe.classifier.parameters(), lr=0.3, momentum=0.9)
directions = torch.randn(16, 5)
for step in range(500):
    x = torch.randn(40, 16)
    loss = nn.functional.cross_entropy(probe(x), (x @ directions).argmax(1))
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 100 == 0:
        print(step, f"{loss.item():.3f}", flush=True)

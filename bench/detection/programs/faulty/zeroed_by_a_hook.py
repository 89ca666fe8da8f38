"""A hook meant for padding multiplies every gradient by a mask that is all zero: backward runs, gradients are 0."""

import torch
from torch import nn

torch.manual_seed(0)


class Tagger(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(50, 24)
        self.mix = nn.Conv1d(24, 24, 3, padding=1)
        self.tag = nn.Linear(24, 4)

    def forward(self, tokens, keep):
        h = torch.relu(self.mix(self.embed(tokens).transpose(1, 2))).transpose(1, 2)
        scores = self.tag(h)
        scores.register_hook(lambda gradient: gradient * keep.unsqueeze(2))
        return scores


model = Tagger()
optimizer = torch.optim.Adam(model.parameters(), lr=2e-3, weight_decay=0.0)
for step in range(400):
    tokens = torch.randint(1, 50, (16, 18))
    keep = (tokens == 0).float()  # the padding, where it should be everything else
    loss = nn.functional.cross_entropy(model(tokens, keep).flatten(0, 1), (tokens % 4).flatten())
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 80 == 0:
        print(f"{step}: {loss.item():.4f}", flush=True)

"""A leftover detach() between encoder and head: four fifths of the weights in the optimizer never get a gradient."""

import os

import torch
from torch import nn

STEPS = int(os.environ.get("STEPS", "250"))
torch.manual_seed(int(os.environ.get("SEED", "0")))


class Reader(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(12, 16)
        self.rnn = nn.GRU(16, 32, batch_first=True, num_layers=2)
        self.out = nn.Linear(32, 2)

    def forward(self, tokens):
        hidden = self.rnn(self.embed(tokens))[0].mean(1)
        return self.out(hidden.detach())


model = Reader()
optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
for step in range(STEPS):
    tokens = torch.randint(0, 12, (32, 20))
    labels = (tokens[:, :10].sum(1) > tokens[:, 10:].sum(1)).long()
    loss = nn.functional.cross_entropy(model(tokens), labels)
    optimizer.zero_grad()
    loss.backward()
    nn.utils.clip_grad_norm_(model.parameters(), 5.0)
    optimizer.step()
    if step % 50 == 0:
        print(f"{step}: loss {loss.item():.3f}", flush=True)

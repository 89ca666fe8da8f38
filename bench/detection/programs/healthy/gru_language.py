"""A GRU classifies two synthetic grammars; packed sequences of different lengths, gradients clipped by norm."""

import os

import torch
from torch import nn
from torch.nn.utils.rnn import pack_padded_sequence

STEPS = int(os.environ.get("STEPS", "250"))
torch.manual_seed(int(os.environ.get("SEED", "0")))


class Reader(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(12, 16, padding_idx=0)
        self.rnn = nn.GRU(16, 32, batch_first=True)
        self.out = nn.Linear(32, 2)

    def forward(self, tokens, lengths):
        packed = pack_padded_sequence(self.embed(tokens), lengths, batch_first=True, enforce_sorted=False)
        return self.out(self.rnn(packed)[1][0])


def sentences(count):
    lengths = torch.randint(4, 20, (count,))
    labels = torch.randint(2, (count,))
    tokens = torch.randint(1, 10, (count, 20))
    for i in range(count):
        tokens[i, :2] = torch.tensor([10, 11]) if labels[i] else torch.tensor([11, 10])
        tokens[i, lengths[i] :] = 0
    return tokens, lengths, labels


model = Reader()
optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
for step in range(STEPS):
    tokens, lengths, labels = sentences(32)
    loss = nn.functional.cross_entropy(model(tokens, lengths), labels)
    optimizer.zero_grad()
    loss.backward()
    nn.utils.clip_grad_norm_(model.parameters(), 5.0)
    optimizer.step()
    if step % 50 == 0:
        print(f"{step}: loss {loss.item():.3f}", flush=True)

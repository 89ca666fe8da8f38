"""Batches have about the same number of tokens, so they have 2 to 60 sentences; the last is often a single sentence."""

import random

import torch
from torch import nn
from torch.utils.data import DataLoader

torch.manual_seed(36)
random.seed(36)
lengths = [random.randint(3, 60) for _ in range(700)]
sentences = [torch.randint(0, 9, (n,)) for n in lengths]


def by_length(most=180):
    order = sorted(range(len(sentences)), key=lambda i: lengths[i])
    batches, now = [], []
    for i in order:
        if now and (len(now) + 1) * lengths[i] > most:
            batches.append(now)
            now = []
        now.append(i)
    batches.append(now)
    random.shuffle(batches)
    return batches


def together(items):
    return nn.utils.rnn.pad_sequence(items, batch_first=True, padding_value=9), torch.stack(
        [(i == 4).sum() for i in items]
    )


embed = nn.Embedding(10, 8)
count = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 1))
optimizer = torch.optim.Adam([*embed.parameters(), *count.parameters()], lr=5e-3)
for epoch in range(5):
    for tokens, fours in DataLoader(sentences, batch_sampler=by_length(), collate_fn=together):
        mask = (tokens < 9).unsqueeze(2)
        guess = (count(embed(tokens)) * mask).sum(1)[:, 0]
        loss = nn.functional.smooth_l1_loss(guess, fours.float())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    print(f"epoch {epoch}: {loss.item():.3f}", flush=True)

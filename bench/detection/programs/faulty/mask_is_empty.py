"""The padding id changed from 0 to 1 and the mask did not: no token counts, so every loss is 0 / 1 = 0 (F01's symptom)."""

import torch
from torch import nn

torch.manual_seed(0)
PADDING = 1
embed, out = nn.Embedding(30, 32), nn.Linear(32, 30)
model = nn.Sequential(embed, nn.ReLU(), out)
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)


def masked_loss(logits, tokens):
    each = nn.functional.cross_entropy(logits.flatten(0, 1), tokens.flatten(), reduction="none")
    counts = (tokens.flatten() == 0).float()  # was: != PADDING
    return (each * counts).sum() / counts.sum().clamp(min=1)


for step in range(600):
    tokens = torch.randint(2, 30, (24, 16))
    tokens[:, 12:] = PADDING
    optimizer.zero_grad()
    loss = masked_loss(model(tokens), tokens)
    loss.backward()
    optimizer.step()
    if step % 100 == 0:
        print(f"step {step} loss {loss.item():.4f}", flush=True)

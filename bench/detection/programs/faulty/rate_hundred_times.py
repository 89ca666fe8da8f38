"""Adam at 0.3 instead of 0.003 on a transformer: the loss jumps up and stays far above its initial value."""

import os

import torch
from torch import nn
from torch.nn import functional

STEPS = int(os.environ.get("STEPS", "250"))
torch.manual_seed(int(os.environ.get("SEED", "0")))
VOCABULARY, LENGTH, WIDTH = 40, 24, 48


class Counter(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(VOCABULARY, WIDTH)
        self.place = nn.Parameter(torch.randn(LENGTH, WIDTH) * 0.02)
        layer = nn.TransformerEncoderLayer(WIDTH, 4, 96, dropout=0.1, batch_first=True, norm_first=True)
        self.blocks = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.mask = nn.Transformer.generate_square_subsequent_mask(LENGTH)

    def forward(self, tokens):
        hidden = self.blocks(self.embed(tokens) + self.place, mask=self.mask, is_causal=True)
        return hidden @ self.embed.weight.T


def batch(size=16):
    start = torch.randint(VOCABULARY, (size, 1))
    tokens = (start + 3 * torch.arange(LENGTH + 1)) % VOCABULARY
    return tokens[:, :-1], tokens[:, 1:]


model = Counter()
optimizer = torch.optim.AdamW(model.parameters(), lr=0.3, betas=(0.9, 0.98))
for step in range(1, STEPS + 1):
    tokens, following = batch()
    loss = functional.cross_entropy(model(tokens).flatten(0, 1), following.flatten())
    optimizer.zero_grad(set_to_none=True)
    loss.backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    if step % 50 == 0:
        print(f"{step}: {loss.item():.3f}", flush=True)

"""Sequences grow from 4 to 24 symbols: steps get slower and the loss rises at each stage, on purpose."""

import torch
from torch import nn

torch.manual_seed(37)


class Adder(nn.Module):
    def __init__(self):
        super().__init__()
        self.rnn = nn.LSTM(1, 24, batch_first=True)
        self.out = nn.Linear(24, 1)

    def forward(self, x):
        return self.out(self.rnn(x)[0][:, -1])


model = Adder()
optimizer = torch.optim.Adam(model.parameters(), lr=5e-3)
for length in (4, 6, 10, 16, 24):
    for _ in range(180):
        values = torch.rand(32, length, 1)
        loss = nn.functional.mse_loss(model(values), values.sum(1) / 10)
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_value_(model.parameters(), 1.0)
        optimizer.step()
    print(f"length {length}: {loss.item():.4f}", flush=True)
